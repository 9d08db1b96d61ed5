// Chrome traces of torch.profiler (export_chrome_trace, tensorboard_trace_handler), plain or gzip:
// the collectives that one rank ran.
//
// NCCL: GPU kernels. Kineto copies what the collective was (name, elements, dtype, process group,
// sequence number) from the host's record_param_comms event into the kernel's arguments; where it
// did not, the two are put together by their external id.
// Gloo: its own spans on worker threads ("gloo:all_gather", ...). They name neither process group
// nor sequence, so they are read only if the process is in a single group of several ranks, in the
// order in which they begin. Gloo carries a reduce-scatter as an all-reduce; which is which is told
// by the c10d calls, if those match the spans one by one.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/trace_join.h"

namespace bucketd {

// Unpacked. What a profiler writes of a few steps is a tenth of it.
inline constexpr int64_t kMaxTraceBytes = int64_t{2} << 30;

// INVALID_ARGUMENT names `source` and the event. What is well-formed but cannot be used is counted
// in `skipped`. Peak memory is about six times the JSON's size.
absl::StatusOr<RankTrace> ReadTorchTrace(absl::string_view bytes, const std::string& source,
                                         int64_t max_json_bytes = kMaxTraceBytes);
// NOT_FOUND if there is no such file.
absl::StatusOr<RankTrace> ReadTorchTraceFile(const std::string& path);

}  // namespace bucketd
