// How a step should be run by fully_shard (FSDP2), eagerly and without a compiler: predicted by
// mode manual, whose plans are what its modules do. One packed bucket a unit; gathers as many units
// ahead as the lists of modules to prefetch are long (one: what it does unasked).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/command.h"

namespace bucketd::ctl {

// The graphs of one step, a joint one or a forward and a backward, each run once.
using StepGraphs = std::vector<Input>;

// A way to wrap and prefetch, and what it would take.
struct Sharding {
  std::string wrapping;
  std::vector<std::vector<std::string>> units;  // modules, in order of first use
  int32_t prefetch_forward = 1, prefetch_backward = 1;
  bool keeps = false;      // gathered parameters until the backward
  int64_t total_ps = 0;    // of all graphs
  int64_t exposed_ps = 0;  // of it, communication that nothing hides
  int64_t peak_bytes = 0;  // of the graph that needs most
};

// Whether the step gathers parameters again in its backward. NOT_FOUND: it has no backward.
absl::StatusOr<bool> GathersAgain(const StepGraphs& step);

struct Advice {
  std::vector<Sharding> tried;  // what is there; then the best distances of each wrapping
  int64_t limit_bytes = 0;
  // In `tried`: the fastest that fits, of equals the one with the least memory, where it saves
  // enough to change anything; else what is there.
  size_t best = 0;

  const Sharding& now() const { return tried.front(); }  // prefetches one unit
  const Sharding& advised() const { return tried[best]; }
};

struct AdviceOptions {
  // What is wrapped now, as --buckets reads it; "": transformer blocks and what is before and
  // behind them.
  std::string units = {};
  std::string memory_limit = {};  // as --memory-limit, of the present peak
  // The host stands until each collective is over, as gloo's do: nothing hides one, however early
  // it is launched, so distances are not tried; and each launch takes `host_ps_per_launch` more.
  bool waits_at_launch = false;
  int64_t host_ps_per_launch = 0;
};

// `step` as it is wrapped now. `kept`, which may be empty: the same step, parameters kept.
// FAILED_PRECONDITION: no units in it.
absl::StatusOr<Advice> AdviseFullyShard(const StepGraphs& step, const StepGraphs& kept,
                                        const AdviceOptions& options);

}  // namespace bucketd::ctl
