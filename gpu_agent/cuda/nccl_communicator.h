// Process groups over NCCL. Communicators are non-blocking: each call is polled against a deadline
// and NCCL's asynchronous errors, and none waits on a stream.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/cuda/cuda_device.h"
#include "gpu_agent/cuda/nccl_api.h"
#include "gpu_agent/device/gpu_module.h"
#include "gpu_agent/device/steady.h"

namespace bucketd::agent {

// A collective in the terms of an NCCL of that version. UNIMPLEMENTED where NCCL has no such
// reduction: bitwise ones, and any on 16-bit integers. All-gathers take every dtype, complex
// numbers reduce as pairs, and bool as the byte that it is (a sum is "any", a product "all").
struct NcclCall {
  CollectiveKind kind = CollectiveKind::kUnspecified;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
};
absl::StatusOr<NcclCall> InNcclTerms(const Collective& collective, int version);
// As GpuModule::takes.
absl::Status Takes(const NcclApi& api, const Collective& collective);

class NcclCommunicator final : public Communicator {
 public:
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      std::shared_ptr<const NcclApi> api, CudaDevice& device, const NcclOptions& options);
  // Of `options.parent`, with nothing shared: an abort of one leaves the other.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Split(std::shared_ptr<const NcclApi> api,
                                                                 CudaDevice& device,
                                                                 const NcclOptions& options);
  ~NcclCommunicator() override;

  absl::Status Launch(Stream& stream, absl::Span<const Collective> group) override;
  // Registers the memory as a window: collectives go from there without NCCL's own copies. Nothing
  // where NCCL has no windows. Takes a third of the timeout at most: a rank whose window is refused
  // leaves its peers waiting.
  absl::Status Register(std::byte* data, int64_t bytes) override;
  absl::Status Deregister(std::byte* data) override;
  // By an id of rank 0 that goes over host(). Where there is none it stays as it is.
  absl::Status Renew(absl::Time deadline) override;
  Communicator& host() override { return options_.host == nullptr ? *this : *options_.host; }
  bool holds_device() const override { return true; }
  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string ToString() const override;
  absl::Status health() const override;
  void Abort(const std::string& why) override;
  // Takes five seconds at most, or the timeout where that is shorter. A healthy one leaves its
  // peers what is on the wire for the most of it. What NCCL has not ended by then, since kernels
  // run or a graph lives that it was captured into, is left to the process: NCCL ends it with
  // those.
  absl::Status Close() override;

 private:
  class State;

  NcclCommunicator(std::shared_ptr<State> state, CudaDevice& device, const NcclOptions& options)
      : device_(device), options_(options), state_(std::move(state)) {}
  static absl::StatusOr<std::shared_ptr<State>> Start(std::shared_ptr<const NcclApi> api,
                                                      CudaDevice& device,
                                                      const NcclOptions& options,
                                                      const std::string& id, SteadyTime deadline);
  absl::StatusOr<std::string> NewId(SteadyTime deadline);
  std::shared_ptr<State> state() const;

  CudaDevice& device_;
  const NcclOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<State> state_;  // shared with events behind its collectives
  bool aborted_ = false;
  std::optional<absl::Status> closed_;
};

}  // namespace bucketd::agent
