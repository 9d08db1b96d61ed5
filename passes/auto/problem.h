// What the search of mode auto plans: a graph without the nodes that decide nothing, and what each
// collective is good for.
//
// Leaders are the nodes that take time, hold memory, communicate or join two leaders; every other
// node follows one leader and stands right behind it, which neither costs time nor lengthens the
// life of any storage.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/auto/tuning.h"
#include "passes/base/csr.h"
#include "passes/base/index.h"
#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/pass/pass.h"

namespace bucketd::search {

using LeaderId = int32_t;   // dense, in program order; -1: none
using StorageId = int32_t;  // dense

enum class Use : uint8_t {
  kInline,  // on the path of the step, launched as soon as it can be, never bucketed
  kRoot,    // an all-gather below no other collective: may start as early as memory allows
  kSink,    // a reduction that little but other reductions hang on: may start late
};

// One collective as the search sees it.
struct Transfer {
  LeaderId start = -1, wait = -1;  // wait -1: nobody waits for it
  Use use = Use::kInline;
  bool mergeable = false;  // may share a bucket
  bool pinned = false;     // kept in order: its wait stands where program order has it
  GroupId group = 0;
  CollectiveKind kind = CollectiveKind::kUnspecified;
  int32_t key = -1;   // of a root or sink: those that may share a bucket, by kind, group, reduce
                      // op, dtype, mergeability and, for sinks, level: members of one key
                      // never depend on one another
  int32_t level = 0;  // of a sink: collectives on the longest path below it
  LeaderId need =
      0;  // of a root: its first user; Problem::size(), behind the last, if nobody uses it
  int64_t bytes = 0, in_bytes = 0, out_bytes = 0;
  // Memory that its launch needs: of a root its result and what it is computed from, of a sink that
  // scatters its result. 0 for other sinks: an all-reduce's result is as large as its input, so
  // room for it would send each off alone.
  int64_t launch_bytes = 0;
  int64_t alpha_ps = 0, wire_ps = 0;  // alone: their sum
  int32_t payload_rank = 0;           // place in eager registration order
  bool packable = true;               // alone, a packed bucket of it keeps the numerics' promise
};

// Immutable once built; the graph and the costs outlive it.
struct Problem {
  const Graph* graph = nullptr;
  const Costs* costs = nullptr;
  const PlanOptions* options = nullptr;
  Tuning tuning;

  std::vector<NodeId> first;  // placeholders and what follows them alone: before everything else
  std::vector<NodeId> node;   // of a leader
  Csr followers;              // nodes right behind a leader, ascending
  Csr before, after;          // leaders; data and constraints
  std::vector<int64_t> cost;  // of a leader's kernel; 0 for collectives and waits
  std::vector<CollectiveId> start_of, wait_of;  // -1: the leader is none

  std::vector<int64_t> bytes;      // of a storage
  std::vector<bool> kept;          // a storage that the step's outputs stand on
  std::vector<int32_t> uses;       // leaders that touch a storage
  Csr touches, owns;               // storages of a leader: all it needs alive; those it makes
  std::vector<int64_t> own_bytes;  // of a leader
  int64_t live_at_start = 0, peak_at_start = 0;

  std::vector<Transfer> transfers;               // one a collective
  std::vector<std::vector<CollectiveId>> roots;  // by key, in order of need; empty for sinks' keys
  std::vector<std::vector<int32_t>> root_keys, sink_keys;  // of a group
  int32_t keys = 0;
  Csr root_work;                      // of a collective: the leaders that a root is computed from
  std::vector<CollectiveId> root_of;  // of a leader: the first root that is computed from it, or -1
  std::vector<bool> is_leaf, is_post;  // of a leader; leaf: below it only reductions (weight
                                       // gradients); post: behind a reduction
  // Program order, one an element and one behind the last: compute before it, memory before it and
  // at it.
  std::vector<int64_t> ideal_ps, live, live_at;

  int32_t size() const { return static_cast<int32_t>(node.size()); }
  // So few leaders that hundreds of decodes are cheap.
  bool is_small() const { return size() <= kSmallLeaders; }
  int64_t total_ps() const { return ideal_ps.back(); }
  const Transfer& transfer(CollectiveId c) const { return transfers[Index(c)]; }
};

// REQUIRES: tag-collectives has run. O(nodes + edges). RESOURCE_EXHAUSTED if nodes alias so many
// others that their storages cannot be listed.
absl::StatusOr<Problem> Contract(const PassContext& context);

// Fills transfers' uses and keys, roots and what stands behind them. Called by Contract().
void FindUses(Problem& problem);

}  // namespace bucketd::search
