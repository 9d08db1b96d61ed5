// Executors of several ranks on simulated GPUs, one a rank.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "gpu_agent/cuda/cuda_device.h"
#include "gpu_agent/cuda/nccl_communicator.h"
#include "tests/gpu_agent/cudasim/world.h"
#include "tests/gpu_agent/executor_fixture.h"
#include "tests/gpu_agent/on_gpu.h"

namespace bucketd::agent {

inline uint64_t Seeds(uint64_t full_ones = 5000) {
  const char* full =
      std::getenv("BUCKETD_FULL");  // the suite sets it to nothing where it is not meant
  return full != nullptr && absl::string_view(full) == "1" ? full_ones : 20;
}

// Ranks that meet: a ring on the host for what they tell each other, and an NCCL id, for each lane.
class Meeting {
 public:
  Meeting(sim::World& world, int ranks, int lanes) : world_(world), ranks_(ranks) {
    for (int lane = 0; lane < lanes; ++lane) {
      rings_.push_back(RingOfThreads(ranks));
      ncclUniqueId id;
      world.nccl_api()->GetUniqueId(&id);
      ids_.emplace_back(id.internal, sizeof(id.internal));
    }
  }
  // One thread a rank.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(CudaDevice& device, int rank, int lane,
                                                     absl::Duration timeout) {
    const auto l = static_cast<size_t>(lane);
    NcclOptions options{ids_[l], rank, ranks_, "lane " + std::to_string(lane), timeout, nullptr};
    options.host = std::move(rings_[l][static_cast<size_t>(rank)]);
    return NcclCommunicator::Create(world_.nccl_api(), device, options);
  }

 private:
  sim::World& world_;
  const int ranks_;
  std::vector<std::vector<std::unique_ptr<Communicator>>> rings_;
  std::vector<std::string> ids_;
};

// A rank with its GPU and its executor.
class GpuRank {
 public:
  GpuRank(sim::World& world, Meeting& meeting, const Program& program, int rank, int lanes,
          absl::Duration timeout)
      : rank_(rank),
        device_(std::make_unique<CudaDevice>(rank, "cuda:" + std::to_string(rank) + " simulated",
                                             world.nccl_api())),
        stream_(*device_->NewStream("trainer")) {
    std::vector<Channel> channels;
    for (int lane = 0; lane < lanes; ++lane) {
      auto joined = meeting.Join(*device_, rank, lane, timeout);
      if (!joined.ok()) {
        opened_ = joined.status();
        return;
      }
      channels.push_back({"dp", lane, *std::move(joined)});
    }
    auto made = Executor::Create(*device_, program, std::move(channels), {.timeout = timeout});
    opened_ = made.status();
    if (made.ok()) executor_ = *std::move(made);
  }

  // As a trainer: what its own stream uses is freed once that is through.
  ~GpuRank() {
    executor_ = nullptr;
    EXPECT_TRUE(stream_->Drain(absl::Now() + absl::Minutes(1)).ok());
  }
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  const absl::Status& opened() const { return opened_; }
  Executor& executor() { return *executor_; }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  void Close() { executor_ = nullptr; }

  // Starts all buckets, waits for all of them, and says what is wrong with what came out.
  std::string Step(bool finish_later = false) {
    const auto& specs = executor_->program().plan.buckets;
    std::vector<std::unique_ptr<BucketData>> data;
    std::vector<std::unique_ptr<OnGpu>> in, out;
    std::vector<TicketPtr> tickets;
    for (size_t k = 0; k < specs.size(); ++k) {
      data.push_back(std::make_unique<BucketData>(MakeData(specs[k], rank_, specs[k].dtype)));
      in.push_back(std::make_unique<OnGpu>(*device_, data[k]->in));
      out.push_back(std::make_unique<OnGpu>(*device_, data[k]->out));
      in[k]->Upload(*stream_);
      out[k]->Upload(*stream_);
      const bool later = finish_later && specs[k].mode == BucketMode::kPacked;
      const auto ticket = executor_->Start(
          static_cast<int32_t>(k),
          {in[k]->tensors(), later ? absl::Span<const Tensor>() : out[k]->tensors(),
           stream_->Record()});
      if (!ticket.ok()) return Kept(in, out, ticket.status().ToString());
      tickets.push_back(*ticket);
      if (later) {
        executor_->Finish(*ticket, out[k]->tensors()).IgnoreError();
      }
    }
    for (const TicketPtr& ticket : tickets) {
      const absl::Status done = executor_->Wait(ticket, Phase::kDone, absl::InfiniteFuture());
      if (!done.ok()) return Kept(in, out, done.ToString());
    }
    for (size_t k = 0; k < specs.size(); ++k) out[k]->Download(*stream_);
    const absl::Status down = stream_->Record()->Wait(absl::InfiniteFuture());
    if (!down.ok()) return down.ToString();
    for (size_t k = 0; k < specs.size(); ++k) {
      const std::string mistake = Mistake(specs[k], rank_, *data[k]);
      if (!mistake.empty()) return mistake;
    }
    return "";
  }

 private:
  // As a trainer that fails keeps its tensors until its executor is closed.
  std::string Kept(std::vector<std::unique_ptr<OnGpu>>& in,
                   std::vector<std::unique_ptr<OnGpu>>& out, const std::string& error) {
    for (auto* list : {&in, &out}) {
      for (auto& one : *list) kept_.push_back(std::move(one));
    }
    return error;
  }

  const int rank_;
  absl::Status opened_;
  const std::unique_ptr<CudaDevice> device_;
  const std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<OnGpu>> kept_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace bucketd::agent
