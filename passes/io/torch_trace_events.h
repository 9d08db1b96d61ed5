// The events of a torch.profiler trace that have to do with collectives, or with a step of FSDP2,
// as they stand there. Internal to passes/io.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/base/types.h"

namespace bucketd::torch_trace {

// Tensors among an event's "Input Dims".
struct Shapes {
  bool stated = false;
  int32_t tensors = 0;   // that are no list's
  int64_t elements = 0;  // of those; -1: absurdly many
  int32_t listed = 0;    // tensors of the first list; 0: no list
  // Elements of each of `tensors`, and of each of the first list; -1: absurdly many.
  std::vector<int64_t> sizes, listed_sizes;
  std::string dtype;   // "Input type" of the first
  bool mixed = false;  // the others have another
};

struct Event {
  // kCall: an op of c10d; kFunctional: one of _c10d_functional, which calls one of c10d.
  // Of a step alone: FSDP2's marks, its packing of shards, other work of a GPU, calls that launch.
  enum class Kind {
    kKernel,
    kComms,
    kGlooSpan,
    kCall,
    kFunctional,
    kMark,
    kCopyIn,
    kWork,
    kLaunch
  };
  Kind kind = Kind::kKernel;
  std::string name;
  int64_t thread = -1;  // -1: not a number
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  int64_t external_id = -1;
  int64_t correlation = -1;  // of a call that launches and its work on the GPU
  // What record_param_comms says; `collective` is "" where nothing does.
  std::string collective, dtype, group_name, group_desc, group_ranks, in_split, out_split;
  int64_t in_elements = -1, out_elements = -1, group_size = -1, sequence = -1;
  Shapes shapes;
};

struct Group {
  std::string name, desc;
  std::vector<int32_t> ranks;  // as stated; empty if not in full
};

struct Trace {
  bool has_events = false;
  int64_t rank = -1;    // none
  int64_t base_ns = 0;  // of every event's start
  std::string host;
  std::vector<Group> groups;
  std::vector<Event> events;
};

// As PyTorch prints scalar types, and as the profiler prints C++ types of inputs. kUnspecified:
// unknown.
DType DTypeOf(absl::string_view name);
// Of "_allgather_base", "all_gather_into_tensor", "c10d::reduce_scatter_", "gloo:all_reduce", ...
CollectiveKind KindOf(absl::string_view name);

// "[0, 1, 2]"; empty where the text is anything else, such as a list that was cut short.
std::vector<int32_t> ParseRanks(absl::string_view text);

enum class Interest { kCollectives, kStep };

// Parses what export_chrome_trace wrote, plain or gzip. INVALID_ARGUMENT names `source` and the
// place; also for more than `max_json_bytes`, or more than two million events of interest.
absl::StatusOr<Trace> ParseTrace(absl::string_view bytes, const std::string& source,
                                 Interest interest, int64_t max_json_bytes);

}  // namespace bucketd::torch_trace
