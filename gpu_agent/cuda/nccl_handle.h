// A communicator as NCCL has it, and the calls of NCCL's that block for as long as others like.
//
// ncclCommAbort and ncclCommDestroy return once the communicator's kernels have ended, and once no
// graph that they were captured into is left. A kernel may stand behind one of another
// communicator, or of a trainer's; a graph may be a global of the process. So nobody waits for
// them, nor for a split, but with a limit.
#pragma once

#include <functional>
#include <future>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "gpu_agent/cuda/nccl_api.h"
#include "gpu_agent/device/steady.h"

namespace bucketd::agent {

// What NCCL writes to and keeps pointers to, until the communicator has ended: whoever waits for
// that owns it.
struct NcclHandle {
  const std::shared_ptr<const NcclApi> api;
  const int device;
  const std::string name;
  ncclComm_t comm = nullptr;                                    // a thread of NCCL's may set it
  std::list<std::pair<std::byte*, ncclWindow_t>> windows = {};  // by their memory; as it sets these

  ncclComm_t made() const;  // null: not yet
};

// A call on a thread of its own, which owns what the call uses. Nobody has to wait for it. Errors
// of StartThread.
absl::StatusOr<std::shared_future<ncclResult_t>> Apart(std::function<ncclResult_t()> call);

// Nobody ends it: what it uses stays. What is waited for in vain then.
std::shared_future<ncclResult_t> LeaveToProcess(const std::shared_ptr<NcclHandle>& handle);

// ncclCommSplit, which blocks if and only if the parent's calls do, and goes on in the background
// otherwise; the child is there in the end. ncclInProgress: it was not there by the deadline. Then
// a child that comes later is nobody's: a parent's that blocks is aborted, another one's is left to
// the process, since nobody here knows how long the parent lives. Errors of Apart.
absl::StatusOr<ncclResult_t> SplitOff(const std::shared_ptr<NcclHandle>& child, ncclComm_t parent,
                                      int color, int rank, SteadyTime deadline);

}  // namespace bucketd::agent
