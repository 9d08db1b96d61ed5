#include "gpu_agent/cuda/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"

#include "gpu_agent/comm/health.h"
#include "gpu_agent/comm/nccl_name.h"
#include "gpu_agent/cuda/nccl_handle.h"
#include "gpu_agent/device/steady.h"
#include "gpu_agent/exec/agreement.h"
#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// What ranks of one color and one NCCL have in common, and no others: messages between two versions
// of NCCL are not promised.
int ColorOf(int color, int version) {
  return static_cast<int>(
      (static_cast<uint32_t>(color) ^ 0x9e3779b9u * static_cast<uint32_t>(version)) >> 1);
}

constexpr absl::Duration kClosing = absl::Seconds(5);

absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::StatusCode::kInvalidArgument;
    case ncclRemoteError:
    case ncclSystemError:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// The type that NCCL adds up, and how many of it make one element.
struct Reduced {
  DType dtype;
  ncclDataType_t type;
  size_t each = 1;
};
constexpr Reduced kReduced[] = {
    {DType::kBool, ncclUint8},        {DType::kU8, ncclUint8},
    {DType::kI8, ncclInt8},           {DType::kI32, ncclInt32},
    {DType::kU32, ncclUint32},        {DType::kI64, ncclInt64},
    {DType::kU64, ncclUint64},        {DType::kF16, ncclFloat16},
    {DType::kBF16, ncclBfloat16},     {DType::kF32, ncclFloat32},
    {DType::kF64, ncclFloat64},       {DType::kF8E4M3, ncclFloat8e4m3},
    {DType::kF8E5M2, ncclFloat8e5m2}, {DType::kC64, ncclFloat32, 2},
    {DType::kC128, ncclFloat64, 2},
};

absl::StatusOr<Reduced> ReducedAs(DType dtype, int version) {
  if ((dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2) && version < 22400) {
    return absl::UnimplementedError(absl::StrCat("NCCL reduces ", Name(dtype), " from 2.24 on"));
  }
  for (const Reduced& known : kReduced) {
    if (known.dtype == dtype) return known;
  }
  return absl::UnimplementedError(absl::StrCat("NCCL does not reduce ", Name(dtype)));
}

absl::StatusOr<ncclRedOp_t> OpOf(DType dtype, ReduceOp op) {
  const bool any_or_all = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return any_or_all ? ncclMax : ncclSum;
    case ReduceOp::kProduct:
      return any_or_all ? ncclMin : ncclProd;
    case ReduceOp::kAvg:
      // It multiplies by 1 / ranks in the same dtype, rounded; on one rank it has no such kernel.
      if (dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2) break;
      return ncclAvg;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kBand:
      if (any_or_all) return ncclMin;
      break;
    case ReduceOp::kBor:
      if (any_or_all) return ncclMax;
      break;
    default:
      break;
  }
  return absl::UnimplementedError(absl::StrCat("NCCL has no ", Name(op), " of ", Name(dtype)));
}

absl::Status CanSplit(const NcclApi& api) {
  if (!api.of_process) {
    return absl::UnavailableError(
        absl::StrCat(api.ToString(),
                     " is not the NCCL that the trainer's communicators are of;"
                     " BUCKETD_NCCL_LIB, if it is set, has to name that"));
  }
  if (api.CommSplit != nullptr) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(api.ToString(), " has no ncclCommSplit, which 2.18 has"));
}

}  // namespace

absl::Status Takes(const NcclApi& api, const Collective& collective) {
  RETURN_IF_ERROR(CanSplit(api));
  return InNcclTerms(collective, api.version).status();
}

absl::StatusOr<NcclCall> InNcclTerms(const Collective& collective, int version) {
  NcclCall call{collective.kind, collective.in, collective.out, 0, ncclUint8, ncclSum};
  if (Gathers(collective.kind)) {
    call.count = static_cast<size_t>(collective.count * ItemSize(collective.dtype));
    return call;
  }
  ASSIGN_OR_RETURN(const Reduced as, ReducedAs(collective.dtype, version));
  ASSIGN_OR_RETURN(call.op, OpOf(collective.dtype, collective.op));
  call.type = as.type;
  call.count = static_cast<size_t>(collective.count) * as.each;
  return call;
}

// The communicator proper. Its lock is never held while one polls, nor while NCCL ends it.
class NcclCommunicator::State final : public Watched {
 public:
  State(std::shared_ptr<const NcclApi> api, int device, const NcclOptions& options)
      : handle_(
            new NcclHandle{std::move(api), device, absl::StrCat(kOwnCommunicators, options.name)}),
        api_(handle_->api),
        timeout_(options.timeout) {}
  ~State() override { Abort(absl::AbortedError("the communicator was destroyed")); }

  const NcclApi& api() const { return *api_; }
  std::shared_ptr<const NcclApi> shared_api() const { return api_; }
  const std::shared_ptr<NcclHandle>& handle() const { return handle_; }
  absl::Status status() const override { return health_.status(); }
  absl::Status Poll(SteadyTime since) override;
  // Runs a call of NCCL's on the communicator, then polls until it is through or the deadline. Any
  // error is the end of the communicator.
  absl::Status Run(absl::string_view what, SteadyTime deadline,
                   const std::function<ncclResult_t(ncclComm_t&)>& call);
  // What a call has come to that is through, or that is in progress at its deadline.
  absl::Status Said(absl::string_view what, ncclResult_t result);
  // NCCL begins to end what is under way. Does not wait.
  void Abort(const absl::Status& error) { End(error, api_->CommAbort); }
  // OK: NCCL has ended it, in peace where it was healthy.
  absl::Status Close(absl::Duration most);
  absl::Status Register(std::byte* data, int64_t bytes, SteadyTime deadline);
  absl::Status Deregister(std::byte* data, SteadyTime deadline);

 private:
  // NCCL's result, in progress included.
  ncclResult_t Result(ncclResult_t of_call);
  absl::Status Fail(absl::string_view what, ncclResult_t result);
  void Destroy(SteadyTime deadline);
  void End(const absl::Status& why, decltype(&ncclCommAbort) how);
  // REQUIRES: mutex_ is held.
  bool there() const { return handle_->made() != nullptr && !ended_.valid(); }

  const std::shared_ptr<NcclHandle> handle_;
  const std::shared_ptr<const NcclApi> api_;
  const absl::Duration timeout_;
  Health health_;
  std::mutex mutex_;
  std::shared_future<ncclResult_t> ended_;  // where it was begun: nobody calls with it any more
};

absl::Status NcclCommunicator::State::Fail(absl::string_view what, ncclResult_t result) {
  std::string text = absl::StrCat(api_->ToString(), ": ", what, ": ", api_->GetErrorString(result));
  {
    const std::lock_guard lock(mutex_);
    const char* last = there() ? api_->GetLastError(handle_->comm) : nullptr;
    if (last != nullptr && *last != '\0') absl::StrAppend(&text, ": ", last);
  }
  Abort(absl::Status(CodeOf(result), text));
  return health_.status();
}

ncclResult_t NcclCommunicator::State::Result(ncclResult_t of_call) {
  if (of_call != ncclInProgress && of_call != ncclSuccess) return of_call;
  const std::lock_guard lock(mutex_);
  if (!there()) return ncclSuccess;  // aborted: health_ knows why
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_->CommGetAsyncError(handle_->comm, &state);
  return asked == ncclSuccess ? state : asked;
}

absl::Status NcclCommunicator::State::Poll(SteadyTime since) {
  RETURN_IF_ERROR(health_.status());
  const ncclResult_t result = Result(ncclSuccess);
  if (result != ncclSuccess && result != ncclInProgress) return Fail("a collective", result);
  // That a peer on this node was killed is no error of NCCL's: its kernels wait for good.
  if (absl::FromChrono(SteadyNow() - since) > timeout_) return Said("a collective", ncclInProgress);
  return health_.status();
}

absl::Status NcclCommunicator::State::Run(absl::string_view what, SteadyTime deadline,
                                          const std::function<ncclResult_t(ncclComm_t&)>& call) {
  RETURN_IF_ERROR(health_.status());
  ncclResult_t result = ncclSuccess;
  {
    const CurrentDevice current(handle_->device);
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(health_.status());  // after it the communicator is gone
    result = call(handle_->comm);
  }
  AskUntil(deadline, absl::Milliseconds(1), [&] {
    result = Result(result);
    return result != ncclInProgress;
  });
  return Said(what, result);
}

absl::Status NcclCommunicator::State::Said(absl::string_view what, ncclResult_t result) {
  if (result == ncclSuccess) return health_.status();
  if (result != ncclInProgress) return Fail(what, result);
  Abort(absl::DeadlineExceededError(
      absl::StrCat(api_->ToString(), ": ", what, " took longer than its timeout")));
  return health_.status();
}

// Windows go with it.
void NcclCommunicator::State::End(const absl::Status& why, decltype(&ncclCommAbort) how) {
  health_.Fail(why);
  const std::lock_guard lock(mutex_);
  if (!there()) return;
  const auto call = Apart([handle = handle_, how] {
    const CurrentDevice current(handle->device);
    return how(handle->comm);
  });
  // On this thread it might never return.
  ended_ = call.ok() ? *call : LeaveToProcess(handle_);
}

absl::Status NcclCommunicator::State::Register(std::byte* data, int64_t bytes,
                                               SteadyTime deadline) {
  ncclResult_t refused = ncclSuccess;
  RETURN_IF_ERROR(Run("registering a window", deadline, [&](ncclComm_t& comm) {
    auto& window = handle_->windows.emplace_back(data, nullptr);
    const ncclResult_t result = api_->CommWindowRegister(comm, data, static_cast<size_t>(bytes),
                                                         &window.second, NCCL_WIN_COLL_SYMMETRIC);
    // That the memory is not of a kind to be registered is no harm to the communicator.
    const bool harmless = result == ncclInvalidArgument || result == ncclInvalidUsage;
    if (!harmless) return result;
    handle_->windows.pop_back();
    refused = result;
    return ncclSuccess;
  }));
  if (refused == ncclSuccess) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(api_->ToString(), ": no window: ", api_->GetErrorString(refused)));
}

absl::Status NcclCommunicator::State::Deregister(std::byte* data, SteadyTime deadline) {
  ncclWindow_t window = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& windows = handle_->windows;
    const auto found = std::find_if(windows.begin(), windows.end(),
                                    [data](const auto& entry) { return entry.first == data; });
    if (!there() || found == windows.end()) return absl::OkStatus();
    window = found->second;
    windows.erase(found);
  }
  if (window == nullptr) return absl::OkStatus();  // NCCL had no use for one
  return Run("deregistering a window", deadline,
             [&](ncclComm_t& comm) { return api_->CommWindowDeregister(comm, window); });
}

void NcclCommunicator::State::Destroy(SteadyTime deadline) {
  while (health_.status().ok() && !handle_->windows.empty()) {
    if (!Deregister(handle_->windows.back().first, deadline).ok()) return;
  }
  const auto finalize = [&](ncclComm_t& comm) { return api_->CommFinalize(comm); };
  if (!Run("finalizing", deadline, finalize).ok()) return;
  End(absl::AbortedError("the communicator was destroyed"), api_->CommDestroy);
}

absl::Status NcclCommunicator::State::Close(absl::Duration most) {
  const SteadyTime limit = SteadyIn(most);
  // The rest is for an abort, should it come to that.
  if (health_.status().ok()) Destroy(SteadyIn(0.8 * most));
  Abort(absl::AbortedError("the communicator was destroyed"));
  std::shared_future<ncclResult_t> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = ended_;
  }
  if (!ended.valid() || ended.wait_until(limit) == std::future_status::ready) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat(handle_->name, ": ", api_->ToString(),
                   " does not end it: a kernel of it runs, a graph that it was captured into is "
                   "not destroyed, or there was no thread for that; it is left to the process"));
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Split(
    std::shared_ptr<const NcclApi> api, CudaDevice& device, const NcclOptions& options) {
  RETURN_IF_ERROR(CanSplit(*api));
  int parents = 0;
  const auto parent = static_cast<ncclComm_t>(options.parent);
  const ncclResult_t counted = api->CommCount(parent, &parents);
  if (counted != ncclSuccess || parents != options.size) {
    return absl::FailedPreconditionError(
        absl::StrCat("the plan is of ", options.size, " ranks, the trainer's communicator of ",
                     parents, "; plan anew for the ranks that there are"));
  }
  std::unique_ptr<NcclCommunicator> child(
      new NcclCommunicator(std::make_shared<State>(api, device.index(), options), device, options));
  State& state = *child->state_;
  const SteadyTime deadline = SteadyIn(options.timeout);
  const auto split = SplitOff(state.handle(), parent, ColorOf(options.color, api->version),
                              options.rank, deadline);
  if (!split.ok()) state.Abort(split.status());
  RETURN_IF_ERROR(split.ok() ? state.Said("a split", *split) : split.status());
  int ranks = 0;
  RETURN_IF_ERROR(state.Run("a count", deadline,
                            [&](ncclComm_t& comm) { return api->CommCount(comm, &ranks); }));
  if (ranks == options.size) return child;
  state.Abort(absl::FailedPreconditionError(absl::StrCat(
      "only ", ranks, " of ", options.size, " ranks hold this plan and epoch, and run ",
      api->ToString(), "; start all of them anew, with one installation")));
  return state.status();
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    std::shared_ptr<const NcclApi> api, CudaDevice& device, const NcclOptions& options) {
  ncclUniqueId id;
  if (options.id.size() != sizeof(id.internal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an NCCL id has ", sizeof(id.internal), " bytes, not ", options.id.size()));
  }
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", options.size, " ranks"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<State> state,
                   Start(std::move(api), device, options, options.id, SteadyIn(options.timeout)));
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(std::move(state), device, options));
}

absl::StatusOr<std::shared_ptr<NcclCommunicator::State>> NcclCommunicator::Start(
    std::shared_ptr<const NcclApi> api, CudaDevice& device, const NcclOptions& options,
    const std::string& id, SteadyTime deadline) {
  ncclUniqueId of_all;
  std::memcpy(of_all.internal, id.data(), sizeof(of_all.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  auto state = std::make_shared<State>(api, device.index(), options);
  if (api->version >= 22700) config.commName = state->handle()->name.c_str();
  const absl::Status started = state->Run("starting", deadline, [&](ncclComm_t& comm) {
    return api->CommInitRankConfig(&comm, options.size, of_all, options.rank, &config);
  });
  if (started.ok()) return state;
  state->Close(kClosing).IgnoreError();
  return started;
}

NcclCommunicator::~NcclCommunicator() { NcclCommunicator::Close().IgnoreError(); }

absl::Status NcclCommunicator::Close() {
  if (!closed_.has_value()) closed_ = state()->Close(std::min(options_.timeout, kClosing));
  return *closed_;
}

std::shared_ptr<NcclCommunicator::State> NcclCommunicator::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

absl::Status NcclCommunicator::Launch(Stream& stream, absl::Span<const Collective> group) {
  const std::shared_ptr<State> state = this->state();
  RETURN_IF_ERROR(state->status());
  RETURN_IF_ERROR(ValidateGroup(group, rank(), size()));
  CudaStream* cuda = AsCudaStream(stream, device_.index());
  if (cuda == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("NCCL wants a stream of ", device_.name()));
  }
  std::vector<NcclCall> calls;
  for (const Collective& collective : group) {
    ASSIGN_OR_RETURN(const NcclCall call, InNcclTerms(collective, state->api().version));
    calls.push_back(call);
  }
  RETURN_IF_ERROR(cuda->status());
  const NcclApi& api = state->api();
  const auto enqueue = [&](const NcclCall& c, ncclComm_t comm) {
    if (Gathers(c.kind)) {
      return api.AllGather(c.in, c.out, c.count, c.type, comm, cuda->get());
    }
    if (Scatters(c.kind)) {
      return api.ReduceScatter(c.in, c.out, c.count, c.type, c.op, comm, cuda->get());
    }
    return api.AllReduce(c.in, c.out, c.count, c.type, c.op, comm, cuda->get());
  };
  cuda->Watch(state);
  // Until the group is through, it may not be on the stream, and an event would come before it.
  return state->Run("a launch", SteadyIn(options_.timeout), [&](ncclComm_t& comm) {
    ncclResult_t result = api.GroupStart();
    for (const NcclCall& call : calls) {
      const ncclResult_t one = enqueue(call, comm);
      if (one != ncclSuccess && one != ncclInProgress) result = one;
    }
    const ncclResult_t end = api.GroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? end : result;
  });
}

absl::Status NcclCommunicator::Register(std::byte* data, int64_t bytes) {
  if (!device_.has_windows()) return state()->status();
  // The rest of the timeout is for going on without.
  return state()->Register(data, bytes, SteadyIn(options_.timeout / 3));
}

absl::Status NcclCommunicator::Deregister(std::byte* data) {
  return state()->Deregister(data, SteadyIn(options_.timeout));
}

absl::StatusOr<std::string> NcclCommunicator::NewId(SteadyTime deadline) {
  ncclUniqueId id{};  // of zeros, where there is none
  if (rank() == 0 && state()->api().GetUniqueId(&id) != ncclSuccess) id = {};
  const auto* mine = reinterpret_cast<const std::byte*>(id.internal);
  ASSIGN_OR_RETURN(const std::vector<std::byte> all,
                   Exchange(host(), {mine, sizeof(id.internal)}, WallTime(deadline)));
  std::memcpy(id.internal, all.data(), sizeof(id.internal));
  const std::string text(id.internal, sizeof(id.internal));
  if (text == std::string(sizeof(id.internal), '\0')) {
    return absl::UnavailableError("rank 0 has no NCCL id");
  }
  return text;
}

absl::Status NcclCommunicator::Renew(absl::Time wall_deadline) {
  const SteadyTime deadline = SteadyAt(wall_deadline);
  const std::shared_ptr<State> before = state();
  if (options_.host == nullptr) return before->status();
  before->Abort(absl::AbortedError("another communicator takes its place"));
  // The memory that it has as a window.
  RETURN_IF_ERROR(before->Close(absl::FromChrono(deadline - SteadyNow())));
  ASSIGN_OR_RETURN(const std::string id, NewId(deadline));
  ASSIGN_OR_RETURN(std::shared_ptr<State> fresh,
                   Start(before->shared_api(), device_, options_, id, deadline));
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) state_.swap(fresh);
  }
  fresh->Close(kClosing).IgnoreError();  // the one that is not ours
  return state()->status();
}

std::string NcclCommunicator::ToString() const {
  return absl::StrCat(state()->api().ToString(), " of ", size(), " ranks, rank ", rank(), " on ",
                      device_.name());
}

absl::Status NcclCommunicator::health() const { return state()->Poll(SteadyNow()); }

void NcclCommunicator::Abort(const std::string& why) {
  std::shared_ptr<State> ended;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    ended = state_;
  }
  ended->Abort(absl::AbortedError(why));
}

}  // namespace bucketd::agent
