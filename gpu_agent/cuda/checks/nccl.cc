#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/cuda/checks/checks.h"
#include "gpu_agent/device/module_loader.h"
#include "gpu_agent/pack/tile_copy.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

using Bytes = std::vector<std::byte>;

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllReduce};
constexpr DType kDtypes[] = {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct,
                             ReduceOp::kAvg};
constexpr int64_t kCounts[] = {0, 1, 7, 1000, (1 << 18) + 3};

// Small integers: any order of summing gives the same bits.
double InputValue(int rank, int64_t k) { return static_cast<double>((k + 3 * rank) % 5 + 1); }

void Store(double value, DType dtype, std::byte* to) {
  const auto put = [to](auto typed) { std::memcpy(to, &typed, sizeof(typed)); };
  switch (dtype) {
    case DType::kBF16: {
      uint32_t bits;
      const float wide = static_cast<float>(value);
      std::memcpy(&bits, &wide, 4);
      return put(Bf16Bits(bits));
    }
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kF64:
      return put(value);
    case DType::kI32:
      return put(static_cast<int32_t>(value));
    default:
      return put(static_cast<int64_t>(value));
  }
}

Bytes Fill(DType dtype, int64_t count, const std::function<double(int64_t)>& value) {
  const size_t item = static_cast<size_t>(ItemSize(dtype));
  Bytes bytes(static_cast<size_t>(count) * item);
  for (int64_t k = 0; k < count; ++k) {
    Store(value(k), dtype, bytes.data() + static_cast<size_t>(k) * item);
  }
  return bytes;
}

double Reduced(ReduceOp op, int size, int64_t k) {
  double result = InputValue(0, k);
  for (int rank = 1; rank < size; ++rank) {
    const double value = InputValue(rank, k);
    if (op == ReduceOp::kMax) result = std::fmax(result, value);
    if (op == ReduceOp::kMin) result = std::fmin(result, value);
    if (op == ReduceOp::kProduct) result *= value;
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) result += value;
  }
  return op == ReduceOp::kAvg ? result / size : result;
}

struct Trial {
  Collective collective;
  Bytes input, wanted;
};

Trial MakeTrial(CollectiveKind kind, DType dtype, ReduceOp op, int64_t count, int rank, int size) {
  Trial trial{{kind, nullptr, nullptr, count, dtype, op}, {}, {}};
  if (kind == CollectiveKind::kAllGather) {
    trial.collective.op = ReduceOp::kNone;
    trial.input = Fill(dtype, count, [&](int64_t k) { return InputValue(rank, k); });
    trial.wanted = Fill(dtype, count * size, [&](int64_t k) {
      return InputValue(static_cast<int>(k / count), k % count);
    });
    return trial;
  }
  const bool scatter = kind == CollectiveKind::kReduceScatter;
  const int64_t begin = scatter ? rank * count : 0;
  trial.input =
      Fill(dtype, scatter ? count * size : count, [&](int64_t k) { return InputValue(rank, k); });
  trial.wanted = Fill(dtype, count, [&](int64_t k) { return Reduced(op, size, begin + k); });
  return trial;
}

// One rank of a group.
class Rank {
 public:
  static absl::StatusOr<std::unique_ptr<Rank>> Create(const GpuModule& module,
                                                      const NcclOptions& options) {
    auto rank = std::make_unique<Rank>();
    ASSIGN_OR_RETURN(rank->device_, module.open(0));
    ASSIGN_OR_RETURN(rank->stream_, rank->device_->NewStream("check"));
    ASSIGN_OR_RETURN(rank->memory_, rank->device_->Allocate(int64_t{32} << 20));
    ASSIGN_OR_RETURN(rank->communicator_, module.nccl(*rank->device_, options));
    return rank;
  }

  // All in one launch; how many gave other bytes than wanted.
  absl::StatusOr<int> Run(std::vector<Trial> trials) {
    std::byte* at = memory_->data();
    std::vector<Collective> group;
    std::vector<Bytes> outputs;
    for (Trial& trial : trials) {
      trial.collective.in = at;
      RETURN_IF_ERROR(device_->Copy(*stream_, trial.input.data(), at, Size(trial.input)));
      at += (trial.input.size() + 4095) / 4096 * 4096;
      trial.collective.out = at;
      at += (trial.wanted.size() + 4095) / 4096 * 4096;
      group.push_back(trial.collective);
      outputs.emplace_back(trial.wanted.size());
    }
    RETURN_IF_ERROR(communicator_->Launch(*stream_, group));
    for (size_t k = 0; k < trials.size(); ++k) {
      RETURN_IF_ERROR(device_->Copy(*stream_, group[k].out, outputs[k].data(), Size(outputs[k])));
    }
    RETURN_IF_ERROR(stream_->Record()->Wait(absl::Now() + absl::Seconds(30)));
    int wrong = 0;
    for (size_t k = 0; k < trials.size(); ++k) wrong += outputs[k] == trials[k].wanted ? 0 : 1;
    return wrong;
  }

  // A collective that the others do not join ends when it is aborted, and says so.
  absl::Status RunAlone() {
    const Collective alone{CollectiveKind::kAllReduce,
                           memory_->data(),
                           memory_->data(),
                           1024,
                           DType::kF32,
                           ReduceOp::kSum};
    RETURN_IF_ERROR(communicator_->Launch(*stream_, {&alone, 1}));
    const auto event = stream_->Record();
    const absl::Status late = event->Wait(absl::Now() + absl::Seconds(1));
    if (!absl::IsDeadlineExceeded(late)) {
      return absl::InternalError(absl::StrCat("alone: ", late.ToString()));
    }
    communicator_->Abort("the check is over");
    const absl::Status ended = event->Wait(absl::Now() + absl::Seconds(10));
    if (absl::IsAborted(ended)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("after the abort: ", ended.ToString()));
  }

  absl::Status Register() { return communicator_->Register(memory_->data(), memory_->bytes()); }
  std::string Name() const { return communicator_->ToString(); }

 private:
  static int64_t Size(const Bytes& bytes) { return static_cast<int64_t>(bytes.size()); }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Communicator> communicator_;
};

absl::Status Sweep(Rank& rank, int number, int size, int& launches, int& wrong) {
  for (const DType dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      const bool whole = dtype == DType::kI32 || dtype == DType::kI64;
      // An average of three is no sum of halves.
      if (op == ReduceOp::kAvg && (whole || size == 3)) continue;
      for (const int64_t count : kCounts) {
        std::vector<Trial> group;
        for (const CollectiveKind kind : kKinds) {
          group.push_back(MakeTrial(kind, dtype, op, count, number, size));
        }
        if (count < 100) {
          ASSIGN_OR_RETURN(const int more, rank.Run(group));
          wrong += more;
          ++launches;
          continue;
        }
        for (Trial& trial : group) {
          ASSIGN_OR_RETURN(const int more, rank.Run({std::move(trial)}));
          wrong += more;
          ++launches;
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RunRank(const GpuModule& module, const NcclOptions& options, bool windows,
                     int& launches, int& wrong) {
  ASSIGN_OR_RETURN(const auto rank, Rank::Create(module, options));
  if (windows) RETURN_IF_ERROR(rank->Register());
  RETURN_IF_ERROR(Sweep(*rank, options.rank, options.size, launches, wrong));
  if (options.size > 1 && !windows && options.rank == 0) RETURN_IF_ERROR(rank->RunAlone());
  if (options.rank == 0) std::printf("  %s\n", rank->Name().c_str());
  return absl::OkStatus();
}

// Ranks as threads, since kernels of several processes do not run at once on one GPU.
bool RunGroup(const GpuModule& module, int size, bool windows) {
  const auto id = module.nccl_id();
  if (!id.ok()) {
    std::printf("nccl: %s\n", id.status().ToString().c_str());
    return false;
  }
  std::vector<std::thread> threads;
  std::mutex mutex;
  int launches = 0, wrong = 0, failed = 0;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      NcclOptions options{*id, rank, size, "check", absl::Seconds(60), 0, false};
      int own_launches = 0, own_wrong = 0;
      const absl::Status status = RunRank(module, options, windows, own_launches, own_wrong);
      const std::lock_guard lock(mutex);
      launches += own_launches;
      wrong += own_wrong;
      if (status.ok()) return;
      ++failed;
      std::printf("  rank %d: %s\n", rank, status.ToString().c_str());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("nccl: %d ranks%s: %d launches, %d collectives with wrong bytes, %d ranks failed\n",
              size, windows ? ", registered memory" : "", launches, wrong, failed);
  return wrong == 0 && failed == 0;
}

bool StartWithoutPeer(const GpuModule& module) {
  const auto id = module.nccl_id();
  const auto device = module.open(0);
  if (!id.ok() || !device.ok()) return false;
  const NcclOptions options{*id, 0, 2, "lonely", absl::Seconds(3), 0, false};
  const absl::Time begin = absl::Now();
  const absl::Status status = module.nccl(**device, options).status();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  std::printf("nccl: a start whose peer never comes, with a timeout of 3 s, took %.1f s: %s\n",
              seconds, status.ToString().c_str());
  return absl::IsDeadlineExceeded(status) && seconds < 20;
}

}  // namespace

Verdict CheckNccl() {
  const GpuBackend backend = LoadGpuBackend();
  if (backend.module == nullptr) {
    std::printf("nccl: %s\n", backend.reason.c_str());
    return Verdict::kNoGpu;
  }
  std::printf("nccl: %s\n", backend.module->nccl_version().c_str());
  bool right = StartWithoutPeer(*backend.module);
  right = RunGroup(*backend.module, 1, false) && right;
  right = RunGroup(*backend.module, 1, true) && right;
  // The caller knows whether this NCCL allows it: gpu_checks.sh.
  const char* ranks = std::getenv("GPU_CHECKS_RANKS");
  for (int size = 2; ranks != nullptr && size <= std::atoi(ranks); ++size) {
    right = RunGroup(*backend.module, size, false) && right;
    right = RunGroup(*backend.module, size, true) && right;
  }
  return right ? Verdict::kRight : Verdict::kWrong;
}

}  // namespace bucketd::agent
