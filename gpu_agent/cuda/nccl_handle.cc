#include "gpu_agent/cuda/nccl_handle.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu_agent/cuda/cuda_device.h"
#include "gpu_agent/device/thread.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// Of a split that has come back: success, but that there is no child yet.
ncclResult_t Settled(const NcclHandle& child, ncclComm_t parent, ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) return result;
  const ncclResult_t asked = child.api->CommGetAsyncError(parent, &result);
  if (asked != ncclSuccess) return asked;
  return result == ncclSuccess && child.made() == nullptr ? ncclInProgress : result;
}

}  // namespace

ncclComm_t NcclHandle::made() const {
  return std::atomic_ref(const_cast<ncclComm_t&>(comm)).load(std::memory_order_acquire);
}

absl::StatusOr<std::shared_future<ncclResult_t>> Apart(std::function<ncclResult_t()> call) {
  const auto task = std::make_shared<std::packaged_task<ncclResult_t()>>(std::move(call));
  const auto result = task->get_future().share();
  ASSIGN_OR_RETURN(std::jthread thread, StartThread("nccl", [task](const auto&) { (*task)(); }));
  thread.detach();
  return result;
}

std::shared_future<ncclResult_t> LeaveToProcess(const std::shared_ptr<NcclHandle>& handle) {
  static std::mutex mutex;
  static auto* left = new std::vector<std::shared_ptr<NcclHandle>>;
  static auto* never = new std::promise<ncclResult_t>;
  static const auto ended = never->get_future().share();
  const std::lock_guard lock(mutex);
  left->push_back(handle);
  return ended;
}

absl::StatusOr<ncclResult_t> SplitOff(const std::shared_ptr<NcclHandle>& child, ncclComm_t parent,
                                      int color, int rank, SteadyTime deadline) {
  // Of the call and of whoever waits for it the second one cleans up.
  const auto one_is_over = std::make_shared<std::atomic<bool>>(false);
  const auto split = [=] {
    const CurrentDevice current(child->device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 0;
    if (child->api->version >= 22700) config.commName = child->name.c_str();
    const ncclResult_t result = child->api->CommSplit(parent, color, rank, &child->comm, &config);
    if (!one_is_over->exchange(true)) return result;
    if (child->made() != nullptr) {
      child->api->CommAbort(child->made());
    } else {
      LeaveToProcess(child);
    }
    return result;
  };
  ASSIGN_OR_RETURN(const auto call, Apart(split));
  ncclResult_t result = ncclInProgress;
  const bool settled = AskUntil(deadline, absl::Milliseconds(1), [&] {
    if (call.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    result = Settled(*child, parent, call.get());
    return result != ncclInProgress;
  });
  if (!settled && one_is_over->exchange(true)) LeaveToProcess(child);
  return result;
}

}  // namespace bucketd::agent
