// A trainer on GPUs, simulated ones or the machine's: its stream, its communicators, and an
// executor of the library's behind the C interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "gpu_agent/library/handle.h"
#include "tests/gpu_agent/on_gpu.h"
#include "tests/gpu_agent/platform.h"
#include "tests/gpu_agent/shared_context.h"

namespace bucketd::agent {

inline const int kRanks = Ranks();

inline std::vector<BucketSpec> Buckets(int lanes) { return BucketsOf(kRanks, lanes); }

// Each bucket, as Buckets() has them.
inline std::vector<int32_t> InOrder() { return {0, 1, 2, 3}; }

// Communicators of a trainer's own, as torch has them: one id a lane. torch's block unless it is
// told otherwise.
class Parents {
 public:
  explicit Parents(int lanes, bool blocking = true)
      : ids_(static_cast<size_t>(lanes)), blocking_(blocking ? 1 : 0) {
    for (ncclUniqueId& id : ids_) Api()->GetUniqueId(&id);
  }
  // One thread a rank.
  std::vector<ncclComm_t> Join(int rank) const {
    std::vector<ncclComm_t> comms;
    const CurrentDevice current(GpuOf(rank));
    for (const ncclUniqueId& id : ids_) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking_;
      Api()->CommInitRankConfig(&comms.emplace_back(), kRanks, id, rank, &config);
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) Api()->CommGetAsyncError(comms.back(), &state);
    }
    return comms;
  }

 private:
  std::vector<ncclUniqueId> ids_;
  const int blocking_;
};

// What a trainer's own part of a step may get wrong.
enum class Fault { kNone, kNoEvent, kFreeBeforeJoin, kReadBeforeJoin };

// What a trainer opens its executor with, beside its own.
struct Opening {
  int lanes = 1;
  double timeout = 30;
  std::vector<int32_t> order = {0, 1, 2, 3};  // of the plan's starts
  std::function<void(bucket_executor_options&, std::vector<bucket_channel>&)> change = nullptr;
  FindGpus gpus = Gpus;
  SharedContext* shared = nullptr;
};

// A rank of a trainer: its GPU, its stream, its communicators, and an executor of the library's.
class Trainer {
 public:
  Trainer(const Parents& parents, int rank, const Opening& how = {})
      : rank_(rank),
        specs_(Buckets(how.lanes)),
        device_(GpuOf(rank), "a trainer's GPU", Api()),
        stream_(OfATrainers(GpuOf(rank))),
        other_(OfATrainers(GpuOf(rank))),
        comms_(parents.Join(rank)),
        shared_(how.shared) {
    for (const BucketSpec& spec : specs_) {
      buckets_.push_back({spec.name.c_str(), spec.lane, static_cast<int32_t>(spec.kind),
                          static_cast<int32_t>(spec.op), static_cast<int32_t>(spec.dtype),
                          static_cast<int32_t>(spec.mode), static_cast<int32_t>(spec.copies),
                          static_cast<int32_t>(spec.counts.size()), spec.counts.data()});
    }
    for (const int32_t bucket : how.order) turns_.push_back(bucket);
    for (const int32_t bucket : how.order) turns_.push_back(-1 - bucket);
    for (int lane = 0; lane < how.lanes; ++lane) {
      channels_.push_back(
          {"dp", lane, rank, kRanks, kRanks, "dp", comms_[static_cast<size_t>(lane)]});
    }
    options_.plan = plan_;
    options_.buckets = buckets_.data();
    options_.bucket_count = static_cast<int32_t>(buckets_.size());
    options_.turns = turns_.data();
    options_.turn_count = static_cast<int32_t>(turns_.size());
    options_.channels = channels_.data();
    options_.channel_count = how.lanes;
    options_.timeout_seconds = how.timeout;
    options_.device = GpuOf(rank);
    char* error = nullptr;
    options_.arena_bytes = bucket_executor_plan_bytes(&options_, &error);
    arena_ = *device_.Allocate(options_.arena_bytes);
    options_.arena = arena_->data();
    scratch_ = *device_.Allocate(128);
    if (how.change != nullptr) how.change(options_, channels_);
    auto opened = OpenExecutor(options_, how.gpus);
    opened_ = opened.status();
    if (opened.ok()) executor_ = opened->release();
  }
  ~Trainer() {
    EXPECT_TRUE(executor_ == nullptr || Close() == 1);
    Drain();
    for (ncclComm_t comm : comms_) Api()->CommAbort(comm);
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const absl::Status& opened() const { return opened_; }
  bucket_executor* executor() { return executor_; }
  cudaStream_t stream() const { return stream_->get(); }
  cudaStream_t other_stream() const { return other_->get(); }
  ncclComm_t parent(int lane) const { return comms_[static_cast<size_t>(lane)]; }
  // Its buckets are records from now on. Before the first start.
  void Report(bucket_telemetry& telemetry) {
    const std::vector<int64_t> wires(buckets_.size());
    const bucket_prediction prediction{0, 0, 0, wires.data()};
    bucket_executor_report(executor_, &options_, &telemetry, &prediction);
  }
  // Its own streams, before what they use is freed.
  void Drain() {
    for (const auto& stream : {stream_.get(), other_.get()}) {
      EXPECT_TRUE(stream->Drain(absl::Now() + absl::Minutes(1)).ok());
    }
  }
  int Close() {
    char* error = nullptr;
    const int closed = bucket_executor_close(std::exchange(executor_, nullptr), &error);
    if (error != nullptr) ended_ = Taken(error);
    return closed;
  }
  // What the close said of the executor's end.
  const std::string& ended() const { return ended_; }
  // All ranks.
  void Meet() {
    if (shared_ != nullptr) shared_->Meet();
  }

  // All buckets in the order that is given, compute beside them, all joined; what is wrong with
  // what came out, or an error. `Enqueue` is the part of it in which the host waits for nothing.
  std::string Step(std::vector<int32_t> order = {0, 1, 2, 3}, Fault fault = Fault::kNone) {
    auto run = Prepare();
    Meet();
    const std::string error = Enqueue(*run, order, fault);
    Meet();
    if (!error.empty()) return kept_.push_back(std::move(run)), error;
    if (fault == Fault::kFreeBeforeJoin) return kept_.push_back(std::move(run)), "";
    const std::string mistake = Check(*run);
    if (!mistake.empty()) kept_.push_back(std::move(run));
    return mistake;
  }

  struct StepData {
    std::vector<std::unique_ptr<BucketData>> data;
    std::vector<std::unique_ptr<OnGpu>> in, out;
  };

  std::unique_ptr<StepData> Prepare() {
    auto run = std::make_unique<StepData>();
    for (const BucketSpec& spec : specs_) {
      auto& data =
          run->data.emplace_back(std::make_unique<BucketData>(MakeData(spec, rank_, spec.dtype)));
      run->in.push_back(std::make_unique<OnGpu>(device_, data->in));
      run->out.push_back(std::make_unique<OnGpu>(device_, data->out));
    }
    Upload(*run);
    return run;
  }

  // What goes in, and over what came out.
  void Upload(StepData& run) {
    for (size_t k = 0; k < specs_.size(); ++k) {
      *run.data[k] = MakeData(specs_[k], rank_, specs_[k].dtype);
      run.in[k]->Upload(*stream_);
      run.out[k]->Upload(*stream_);
    }
  }

  // What is wrong with what came out, or "".
  std::string Check(StepData& run) {
    for (const auto& out : run.out) out->Download(*stream_);
    const absl::Status down = stream_->Record()->Wait(absl::Now() + absl::Seconds(20));
    if (!down.ok()) return down.ToString();
    for (size_t k = 0; k < specs_.size(); ++k) {
      const std::string mistake = Mistake(specs_[k], rank_, *run.data[k]);
      if (!mistake.empty()) return mistake;
    }
    return "";
  }

  std::string Enqueue(StepData& run, const std::vector<int32_t>& order, Fault fault) {
    std::vector<int64_t> tickets;
    const std::string error = Start(run, order, tickets, fault);
    if (!error.empty()) return error;
    if (fault == Fault::kFreeBeforeJoin) run.out[0]->Free();
    if (fault == Fault::kReadBeforeJoin) run.out[0]->Download(*stream_);
    return Join(tickets);
  }

  std::string Start(StepData& run, const std::vector<int32_t>& order, std::vector<int64_t>& tickets,
                    Fault fault = Fault::kNone) {
    char* error = nullptr;
    for (const int32_t bucket : order) {
      const auto k = static_cast<size_t>(bucket);
      const auto in = Tensors(*run.in[k]), out = Tensors(*run.out[k]);
      CudaStream& behind = fault == Fault::kNoEvent ? *other_ : *stream_;
      const int64_t ticket =
          bucket_executor_start(executor_, bucket, in.data(), out.data(), behind.get(), &error);
      if (ticket == 0) return Taken(error);
      tickets.push_back(ticket);
      Compute();
    }
    return "";
  }

  std::string Join(const std::vector<int64_t>& tickets) {
    char* error = nullptr;
    for (const int64_t ticket : tickets) {
      if (bucket_executor_join(executor_, ticket, stream_->get(), &error) == 0) return Taken(error);
    }
    return "";
  }

  static std::string Taken(char* error) {
    std::string text = error;
    bucket_free(error);
    return text;
  }

 private:
  static std::unique_ptr<CudaStream> OfATrainers(int gpu) {
    const CurrentDevice current(gpu);
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return std::make_unique<CudaStream>(gpu, stream);
  }
  static std::vector<bucket_tensor> Tensors(OnGpu& tensors) {
    std::vector<bucket_tensor> all;
    for (const Tensor& t : tensors.tensors()) {
      all.push_back({t.data, t.elements, static_cast<int32_t>(t.dtype)});
    }
    return all;
  }
  // Work of the trainer's own beside the buckets.
  void Compute() {
    const auto half = scratch_->bytes() / 2;
    EXPECT_EQ(cudaMemcpyAsync(scratch_->data() + half, scratch_->data(), static_cast<size_t>(half),
                              cudaMemcpyDeviceToDevice, stream_->get()),
              cudaSuccess);
  }

  const int rank_;
  const std::vector<BucketSpec> specs_;
  CudaDevice device_;
  const std::unique_ptr<CudaStream> stream_, other_;
  const std::vector<ncclComm_t> comms_;
  SharedContext* const shared_;
  std::unique_ptr<Buffer> arena_, scratch_;
  const uint8_t plan_[32] = {};
  std::vector<bucket_spec> buckets_;
  std::vector<int32_t> turns_;
  std::vector<bucket_channel> channels_;
  bucket_executor_options options_{};
  absl::Status opened_;
  std::vector<std::unique_ptr<StepData>> kept_;  // of steps that failed, until all is closed
  bucket_executor* executor_ = nullptr;
  std::string ended_;
};

inline void OnGpus(int lanes, const std::function<void(Trainer&, int)>& run, double timeout = 30) {
  const Parents parents(lanes);
  SharedContext shared(kRanks);
  OnRanks(kRanks, [&](int rank) {
    Trainer mine(parents, rank, {.lanes = lanes, .timeout = timeout, .shared = &shared});
    ASSERT_TRUE(mine.opened().ok()) << mine.opened();
    run(mine, rank);
  });
}

}  // namespace bucketd::agent
