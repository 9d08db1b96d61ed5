#include "gpu_agent/cuda/cuda_device.h"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "gpu_agent/cuda/cuda_copier.h"
#include "gpu_agent/device/steady.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(int device, void* allocation, std::byte* data, int64_t bytes,
             std::shared_ptr<const NcclApi> nccl)
      : device_(device),
        allocation_(allocation),
        data_(data),
        bytes_(bytes),
        nccl_(std::move(nccl)) {}
  ~CudaBuffer() override {
    const CurrentDevice current(device_);
    if (nccl_ != nullptr) {
      nccl_->MemFree(allocation_);
    } else {
      cudaFree(allocation_);
    }
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  std::byte* data() override { return data_; }
  int64_t bytes() const override { return bytes_; }

 private:
  const int device_;
  void* const allocation_;
  std::byte* const data_;
  const int64_t bytes_;
  const std::shared_ptr<const NcclApi> nccl_;  // whose memory it is; null: CUDA's
};

// What the runtime has no calls for. Null members: there is no driver.
struct Driver {
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuDevicePrimaryCtxRelease) release = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
  decltype(&cuStreamWaitValue32) wait_value = nullptr;
};

template <class Function>
void FindInDriver(const char* name, Function& function) {
  constexpr unsigned kSince = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result) ==
      cudaSuccess) {
    function = reinterpret_cast<Function>(found);
  }
}

const Driver& TheDriver() {
  static const Driver driver = [] {
    Driver found;
    FindInDriver("cuDevicePrimaryCtxRetain", found.retain);
    FindInDriver("cuDevicePrimaryCtxRelease", found.release);
    FindInDriver("cuCtxPushCurrent", found.push);
    FindInDriver("cuCtxPopCurrent", found.pop);
    FindInDriver("cuStreamWaitValue32", found.wait_value);
    return found;
  }();
  return driver;
}

// Those that the runtime and PyTorch use, too, by their GPUs; kept until LeaveDevice.
struct Contexts {
  std::mutex mutex;
  std::map<int, CUcontext> retained;
};

Contexts& TheContexts() {
  static auto* contexts = new Contexts;
  return *contexts;
}

// Null: there is none to be had.
CUcontext ContextOf(int index) {
  const Driver& driver = TheDriver();
  if (driver.retain == nullptr || driver.push == nullptr || driver.pop == nullptr) return nullptr;
  Contexts& contexts = TheContexts();
  const std::lock_guard lock(contexts.mutex);
  const auto [known, fresh] = contexts.retained.try_emplace(index, nullptr);
  if (!fresh || driver.retain(&known->second, index) == CUDA_SUCCESS) return known->second;
  contexts.retained.erase(known);
  return nullptr;
}

class CudaGate final : public Gate {
 public:
  CudaGate(uint32_t& gone, uint32_t number) : gone_(gone), number_(number) {}
  ~CudaGate() override { std::atomic_ref(gone_).store(number_, std::memory_order_release); }
  CudaGate(const CudaGate&) = delete;
  CudaGate& operator=(const CudaGate&) = delete;

 private:
  uint32_t& gone_;
  const uint32_t number_;
};

// It says nothing of what runs where a capture forbids the question.
bool MayRun(cudaError_t answer) {
  return answer == cudaErrorNotReady || (answer >= cudaErrorStreamCaptureUnsupported &&
                                         answer <= cudaErrorStreamCaptureWrongThread);
}

// Not the GPU's, and not pinned.
bool IsPlainHostMemory(const void* memory) {
  cudaPointerAttributes attributes;
  return cudaPointerGetAttributes(&attributes, memory) == cudaSuccess &&
         attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

CurrentDevice::CurrentDevice(int index) {
  const CUcontext context = ContextOf(index);
  pushed_ = context != nullptr && TheDriver().push(context) == CUDA_SUCCESS;
}

CurrentDevice::~CurrentDevice() {
  CUcontext popped = nullptr;
  if (pushed_) TheDriver().pop(&popped);
}

absl::Status LeaveDevice(int index) {
  {
    Contexts& contexts = TheContexts();
    const std::lock_guard lock(contexts.mutex);
    const auto found = contexts.retained.find(index);
    if (found == contexts.retained.end()) return absl::OkStatus();
    if (TheDriver().release != nullptr) TheDriver().release(index);
    contexts.retained.erase(found);
  }
  // The runtime retains the context as well, and gives it up by this alone.
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(index), absl::StrCat("GPU ", index)));
  return CudaStatus(cudaDeviceReset(), absl::StrCat("leaving GPU ", index));
}

BesideCaptures::BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }

BesideCaptures::~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }

SpareEvents::~SpareEvents() {
  const CurrentDevice current(device_);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

absl::StatusOr<cudaEvent_t> SpareEvents::Take() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      const cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  const CurrentDevice current(device_);
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDefault), "an event"));
  return event;
}

void SpareEvents::Give(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

CudaEvent::CudaEvent(std::shared_ptr<SpareEvents> spare, absl::Status error, WatchedList watched)
    : spare_(std::move(spare)), watched_(std::move(watched)), status_(std::move(error)) {}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) spare_->Give(event_);
}

absl::Status CudaEvent::Record(cudaStream_t stream) {
  ASSIGN_OR_RETURN(event_, spare_->Take());
  const CurrentDevice current(device());
  return CudaStatus(cudaEventRecord(event_, stream), "recording an event");
}

bool CudaEvent::Seen() const {
  if (seen_ || event_ == nullptr) return true;
  const CurrentDevice current(device());
  const BesideCaptures beside;
  const cudaError_t error = cudaEventQuery(event_);
  if (MayRun(error)) {
    cudaGetLastError();  // else the next one who asks on this thread takes it for an error
    return false;
  }
  seen_ = true;
  if (status_.ok()) status_ = CudaStatus(error, "the stream");
  for (const auto& watched : watched_) {
    if (status_.ok()) status_ = watched->status();
  }
  return true;
}

bool CudaEvent::done() const {
  const std::lock_guard lock(mutex_);
  return Seen();
}

bool CudaEvent::seen_done() const {
  const std::lock_guard lock(mutex_);
  return seen_ || event_ == nullptr;
}

absl::Status CudaEvent::known_error() const {
  const std::lock_guard lock(mutex_);
  if (seen_ || !status_.ok()) return status_;
  for (const auto& watched : watched_) RETURN_IF_ERROR(watched->status());
  return absl::OkStatus();
}

absl::Status CudaEvent::status() const {
  const std::lock_guard lock(mutex_);
  return Seen() ? status_ : absl::OkStatus();
}

absl::Status CudaEvent::Wait(absl::Time deadline) const {
  // Querying, since a wait inside of CUDA knows neither deadlines nor NCCL's errors.
  const SteadyTime begin = SteadyNow();
  const bool reached = AskUntil(SteadyAt(deadline), absl::Microseconds(200), [&] {
    if (done()) return true;
    for (const auto& watched : watched_) watched->Poll(begin).IgnoreError();
    return false;
  });
  if (reached) return status();
  return absl::DeadlineExceededError("the stream did not reach the event in time");
}

absl::StatusOr<int64_t> CudaEvent::Since(const Event& earlier) const {
  const auto* other = dynamic_cast<const CudaEvent*>(&earlier);
  if (other == nullptr || other->device() != device()) {
    return absl::FailedPreconditionError("the events are of two devices");
  }
  if (!done() || !other->done() || event_ == nullptr || other->event_ == nullptr) {
    return absl::FailedPreconditionError("the events are not both done");
  }
  const CurrentDevice current(device());
  float milliseconds = 0;
  RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&milliseconds, other->event_, event_),
                             "the time between two events"));
  return std::llround(static_cast<double>(milliseconds) * 1e9);
}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Start(int device,
                                                              std::shared_ptr<SpareEvents> spare) {
  const CurrentDevice current(device);
  cudaStream_t stream = nullptr;
  int lowest = 0, highest = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "priorities"));
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest),
                             "a stream"));
  return std::make_unique<CudaStream>(device, stream, true, std::move(spare));
}

CudaStream::CudaStream(int device, cudaStream_t stream, bool owned,
                       std::shared_ptr<SpareEvents> spare)
    : device_(device),
      stream_(stream),
      owned_(owned),
      spare_(spare != nullptr ? std::move(spare) : std::make_shared<SpareEvents>(device)) {}

uint64_t CudaStream::NextId() {
  static std::atomic<uint64_t> next = 0;
  return next++;
}

CudaStream::~CudaStream() {
  if (!owned_) return;
  const CurrentDevice current(device_);
  // The stream may still look at it: then it stays.
  if (gates_ != nullptr && cudaStreamQuery(stream_) == cudaSuccess) cudaFreeHost(gates_);
  cudaStreamDestroy(stream_);
}

absl::Status CudaStream::status() const {
  if (!error_.ok()) return error_;
  for (const auto& watched : watched_) RETURN_IF_ERROR(watched->status());
  return absl::OkStatus();
}

void CudaStream::Fail(const absl::Status& error) {
  if (error_.ok()) error_ = error;
}

void CudaStream::Watch(const std::shared_ptr<Watched>& watched) {
  if (std::find(watched_.begin(), watched_.end(), watched) == watched_.end()) {
    watched_.push_back(watched);
  }
}

std::shared_ptr<Event> CudaStream::Record() {
  // Also on a dead stream: what was enqueued before its error may still run.
  const absl::Status dead = status();
  auto event = std::make_shared<CudaEvent>(spare_, dead, watched_);
  const absl::Status recorded = event->Record(stream_);
  if (recorded.ok()) return event;
  Fail(recorded);
  return std::make_shared<CudaEvent>(spare_, dead.ok() ? recorded : dead, watched_);
}

absl::Status CudaStream::Drain(absl::Time deadline) {
  const CurrentDevice current(device_);
  const BesideCaptures beside;  // whoever closes an executor may be in the midst of one
  const bool ended = AskUntil(SteadyAt(deadline), absl::Milliseconds(1), [this] {
    // Any other answer is that of a lost context, which runs nothing.
    if (!MayRun(cudaStreamQuery(stream_))) return true;
    cudaGetLastError();  // as in CudaEvent::Seen
    return false;
  });
  return ended ? absl::OkStatus() : absl::DeadlineExceededError("the stream did not end");
}

void CudaStream::After(std::shared_ptr<Event> event) {
  const auto* of_cuda = dynamic_cast<const CudaEvent*>(event.get());
  if (of_cuda == nullptr || of_cuda->device() != device_) {
    return Fail(absl::InvalidArgumentError("a stream waits for events of its own GPU only"));
  }
  const absl::Status ended = of_cuda->known_error();
  if (!ended.ok()) return Fail(ended);
  if (of_cuda->get() == nullptr) return;
  const CurrentDevice current(device_);
  for (const auto& watched : of_cuda->watched()) Watch(watched);
  const cudaError_t error = cudaStreamWaitEvent(stream_, of_cuda->get(), 0);
  if (error != cudaSuccess) Fail(CudaStatus(error, "waiting for an event"));
}

void CudaStream::AfterEnd(const Event& event) {
  const auto* of_cuda = dynamic_cast<const CudaEvent*>(&event);
  if (of_cuda == nullptr || of_cuda->get() == nullptr) return;
  const CurrentDevice current(device_);
  cudaStreamWaitEvent(stream_, of_cuda->get(), 0);
}

absl::StatusOr<uint64_t> CudaStream::Capture() const {
  const CurrentDevice current(device_);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;  // NOLINT(runtime/int): CUDA's type
  RETURN_IF_ERROR(CudaStatus(cudaStreamGetCaptureInfo(stream_, &status, &id), "a capture"));
  if (status == cudaStreamCaptureStatusInvalidated) {
    return absl::FailedPreconditionError("the capture of the stream has failed already");
  }
  return status == cudaStreamCaptureStatusNone ? 0 : uint64_t{id} + 1;
}

absl::StatusOr<std::unique_ptr<Gate>> CudaStream::Shut() {
  const CurrentDevice current(device_);
  if (gates_ == nullptr) {
    void* memory = nullptr;
    RETURN_IF_ERROR(CudaStatus(
        cudaHostAlloc(&memory, sizeof(*gates_), cudaHostAllocMapped | cudaHostAllocPortable),
        "a gate"));
    gates_ = static_cast<uint32_t*>(memory);
    *gates_ = 0;
  }
  const auto at = reinterpret_cast<CUdeviceptr>(gates_);  // of pinned memory both are one
  const auto wait = TheDriver().wait_value;
  if (wait == nullptr || wait(stream_, at, shut_ + 1, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) {
    return absl::UnavailableError("this driver has no waits of streams for values in memory");
  }
  return std::make_unique<CudaGate>(*gates_, ++shut_);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int index,
                                                             std::shared_ptr<const NcclApi> nccl) {
  cudaDeviceProp properties;
  RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, index), absl::StrCat("GPU ", index)));
  if (properties.major < 8) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", index, " (", properties.name, ") has compute capability ",
                     properties.major, ".", properties.minor, "; the kernels want 8.0 or newer"));
  }
  // The runtime would work on the thread's own GPU then, 0 in most processes.
  if (ContextOf(index) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("GPU ", index, " (", properties.name,
                     ") gives no context: another process has it alone, or it is lost"));
  }
  auto device = std::make_unique<CudaDevice>(
      index, absl::StrCat("cuda:", index, " ", properties.name), std::move(nccl));
  RETURN_IF_ERROR(device->copier_.status());
  return device;
}

CudaDevice::CudaDevice(int index, std::string name, std::shared_ptr<const NcclApi> nccl)
    : index_(index),
      name_(std::move(name)),
      nccl_(std::move(nccl)),
      staging_(index),
      copier_(CudaCopier::Create(index)) {}

CudaDevice::~CudaDevice() = default;

bool CudaDevice::has_windows() const {
  return nccl_ != nullptr && nccl_->MemAlloc != nullptr && nccl_->CommWindowRegister != nullptr;
}

absl::StatusOr<std::unique_ptr<Buffer>> CudaDevice::Allocate(int64_t bytes) {
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("a buffer of ", bytes, " bytes"));
  if (bytes == 0) return std::make_unique<CudaBuffer>(index_, nullptr, nullptr, 0, nullptr);
  const CurrentDevice current(index_);
  void* allocation = nullptr;
  if (nccl_ != nullptr && nccl_->MemAlloc != nullptr) {
    const ncclResult_t result = nccl_->MemAlloc(&allocation, static_cast<size_t>(bytes));
    if (result != ncclSuccess) {
      return absl::ResourceExhaustedError(absl::StrCat("a buffer of ", bytes, " bytes on ", name_,
                                                       ": ", nccl_->GetErrorString(result)));
    }
    return std::make_unique<CudaBuffer>(index_, allocation, static_cast<std::byte*>(allocation),
                                        bytes, nccl_);
  }
  // CUDA promises 256 bytes only.
  const size_t unit = size_t{kBufferAlignment};
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&allocation, static_cast<size_t>(bytes) + unit),
                             absl::StrCat("a buffer of ", bytes, " bytes on ", name_)));
  const size_t past = reinterpret_cast<uintptr_t>(allocation) % unit;
  std::byte* data = static_cast<std::byte*>(allocation) + (past == 0 ? 0 : unit - past);
  return std::make_unique<CudaBuffer>(index_, allocation, data, bytes, nullptr);
}

absl::StatusOr<std::unique_ptr<Stream>> CudaDevice::NewStream(const std::string&) {
  return CudaStream::Start(index_, spare_);
}

void CudaDevice::OnlyLook() {
  const CurrentDevice current(index_);  // else the runtime makes the thread one on GPU 0 for this
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
}

absl::Status CudaDevice::Copy(Stream& stream, const void* from, void* to, int64_t bytes) {
  CudaStream* cuda = AsCudaStream(stream, index_);
  if (cuda == nullptr || bytes < 0 || (bytes > 0 && (from == nullptr || to == nullptr))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a copy of ", bytes, " bytes: wants a stream of ", name_, " and two addresses"));
  }
  if (bytes == 0 || !cuda->status().ok()) return absl::OkStatus();
  const CurrentDevice current(index_);
  const size_t size = static_cast<size_t>(bytes);
  const bool out = IsPlainHostMemory(to), in = IsPlainHostMemory(from);
  const absl::Status copied =
      out != in ? staging_.Copy(cuda->get(), from, to, size, out)
                : CudaStatus(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, cuda->get()),
                             absl::StrCat("a copy of ", bytes, " bytes"));
  if (!copied.ok()) cuda->Fail(copied);
  return copied;
}

absl::Status CudaDevice::CopyTiles(Stream& stream, TileList tiles) {
  RETURN_IF_ERROR(copier_.status());
  return (*copier_)->Copy(stream, tiles);
}

CudaStream* AsCudaStream(Stream& stream, int device) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  return cuda != nullptr && cuda->device() == device ? cuda : nullptr;
}

}  // namespace bucketd::agent
