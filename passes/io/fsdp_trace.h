// A step that fully_shard (FSDP2) ran eagerly, as torch.profiler shows it: what FSDP2 marks
// (record_function "FSDP::all_gather (layers.0)", ...), the collectives in its marks, and what was
// computed between them.
//
// What was computed: where the trace has work of a GPU, that which was launched between two marks;
// else the time of the host between them, which then is the one that computes. What stands inside
// of marks is FSDP2's own: packing, launching, waiting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/base/types.h"

namespace bucketd {

struct FsdpStep {
  // What one call of fully_shard wrapped.
  struct Unit {
    std::string name;  // as FSDP2 writes it: "layers.0", "norm, output"; "" is the model itself
    int32_t gathers = 0;
    DType gathered = DType::kUnspecified, reduced = DType::kUnspecified;
    // Elements of each parameter's shard, padded; all in one where the trace does not tell them
    // apart. Empty: nothing of it is gathered or reduced.
    std::vector<int64_t> shards;
  };
  struct Event {
    enum class Kind : uint8_t {
      kUse,      // the unit's parameters are read from here on
      kRelease,  // ... to here
      kReduce,   // its gradients are there
      kCompute   // for `picoseconds`
    };
    Kind kind = Kind::kCompute;
    int32_t unit = -1;
    int64_t picoseconds = 0;
    bool backward = false;
  };
  std::string source;
  std::vector<Unit> units;    // by first mark
  std::vector<Event> events;  // by time
  int32_t ranks = 0;          // that parameters are sharded over
  bool on_gpu = false;
  // The host stood until each collective was over, as it does on CPUs unless told otherwise:
  // nothing ran beside it. `host_ps_per_collective`: what else it took in FSDP2's marks.
  bool waits_at_launch = false;
  int64_t host_ps_per_collective = 0;
  int64_t total_ps = 0;  // first mark to last mark, or to the end of what it launched
  int32_t steps = 0;     // that the trace holds; this one is of median length
};

// Unpacked: some hundred steps. One or two are enough.
inline constexpr int64_t kMaxStepTraceBytes = int64_t{1} << 30;

// INVALID_ARGUMENT: no trace. FAILED_PRECONDITION: a trace, but of no step of FSDP2, of none in
// full, without sizes, or over two meshes; says what to record. Peak memory is about six times the
// JSON's size.
absl::StatusOr<FsdpStep> ReadFsdpTrace(absl::string_view bytes, const std::string& source,
                                       int64_t max_json_bytes = kMaxStepTraceBytes);
// NOT_FOUND if there is no such file.
absl::StatusOr<FsdpStep> ReadFsdpTraceFile(const std::string& path);

}  // namespace bucketd
