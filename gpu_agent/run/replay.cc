#include "gpu_agent/run/replay.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/prctl.h>

#include "gpu_agent/exec/executor.h"
#include "gpu_agent/run/sweep.h"
#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr int64_t kNanosecond = 1000;  // in picoseconds

int64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec) * kNanosecond;
}

void SleepUntil(int64_t ps) {
  const int64_t ns = ps / kNanosecond;
  const timespec until{ns / 1'000'000'000, ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

int64_t Aligned(int64_t bytes) {
  return (bytes + kMemberAlignment - 1) / kMemberAlignment * kMemberAlignment;
}

// Elements of each member's tensor.
std::vector<int64_t> Scaled(const BucketSpec& spec, bool full) {
  std::vector<int64_t> elements = spec.counts;
  for (int64_t& count : elements) count *= full ? spec.group_size : 1;
  return elements;
}

std::vector<int64_t> InputsOf(const BucketSpec& spec) { return Scaled(spec, Scatters(spec.kind)); }

// None where the reduced result is used where it lies, in the bucket.
std::vector<int64_t> OutputsOf(const BucketSpec& spec) {
  const bool gather = Gathers(spec.kind);
  if (spec.mode == BucketMode::kPacked && !gather) return {};
  return Scaled(spec, gather);
}

int64_t BytesOf(const std::vector<int64_t>& elements, DType dtype) {
  int64_t bytes = 0;
  for (const int64_t count : elements) bytes += Aligned(count * ItemSize(dtype));
  return bytes;
}

std::vector<Tensor> Lay(const std::vector<int64_t>& elements, DType dtype, std::byte* at) {
  std::vector<Tensor> tensors;
  for (const int64_t count : elements) {
    tensors.push_back({at, count, dtype});
    at += Aligned(count * ItemSize(dtype));
  }
  return tensors;
}

// Where buckets' tensors lie in memory that need not hold all of them at once.
class Places {
 public:
  void Want(int64_t bytes) {
    all_ += bytes;
    most_ = std::max(most_, bytes);
  }
  int64_t bytes() const { return std::max(most_, std::min(all_, kMoreThanCachesHold)); }
  // As many bytes as were wanted in one call, or fewer.
  int64_t Take(int64_t bytes) {
    if (next_ + bytes > this->bytes()) next_ = 0;
    return std::exchange(next_, next_ + bytes);
  }

 private:
  static constexpr int64_t kMoreThanCachesHold = 128 << 20;
  int64_t all_ = 0, most_ = 0, next_ = 0;
};

class Replayer {
 public:
  Replayer(Session& session, const ReplayPlan& plan) : session_(session), plan_(plan) {}

  absl::Status Open() {
    prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds
    ASSIGN_OR_RETURN(Program program, LayOut(plan_.spec));
    ASSIGN_OR_RETURN(control_, session_.Connect("control"));
    ASSIGN_OR_RETURN(stream_, session_.device().NewStream("control"));
    std::vector<Channel> channels;
    for (const BucketSpec& spec : plan_.spec.buckets) {
      channel_of_.push_back(-1);
      for (size_t i = 0; i < channels.size(); ++i) {
        const bool same = channels[i].mesh_dim == spec.mesh_dim && channels[i].lane == spec.lane;
        if (same) channel_of_.back() = static_cast<int>(i);
      }
      if (channel_of_.back() >= 0) continue;
      channel_of_.back() = static_cast<int>(channels.size());
      ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                       session_.Connect(absl::StrCat("group ", channels.size())));
      channels.push_back({spec.mesh_dim, spec.lane, std::move(communicator)});
    }
    ASSIGN_OR_RETURN(executor_, Executor::Create(session_.device(), std::move(program),
                                                 std::move(channels), {}));
    return MakeTensors();
  }

  // The whole, of the slowest rank.
  absl::StatusOr<int64_t> Round(std::vector<PartTimes>& buckets) {
    std::vector<int64_t> barrier = {0};
    RETURN_IF_ERROR(Reduce(barrier));
    origin_ = stream_->Record();
    RETURN_IF_ERROR(origin_->Wait(absl::InfiniteFuture()));
    const int64_t begin = Now();
    clock_ = begin;
    for (const ReplayStep& step : plan_.steps) {
      switch (step.kind) {
        case ReplayStep::Kind::kCompute:
          clock_ += step.compute_ps;
          SleepUntil(clock_);
          break;
        case ReplayStep::Kind::kStart:
          RETURN_IF_ERROR(Start(step.bucket));
          break;
        case ReplayStep::Kind::kWait:
          RETURN_IF_ERROR(End(step.bucket));
          break;
      }
    }
    std::vector<int64_t> total = {Now() - begin};
    RETURN_IF_ERROR(Reduce(total));
    RETURN_IF_ERROR(Collect(buckets));
    return total[0];
  }

  absl::StatusOr<std::vector<MeasuredSpan>> Spans() const {
    std::vector<MeasuredSpan> spans;
    const PlanSpec& spec = plan_.spec;
    for (size_t k = 0; k < tickets_.size(); ++k) {
      ASSIGN_OR_RETURN(const BucketTimes t, executor_->Times(tickets_[k], origin_.get()));
      const std::string name =
          absl::StrCat(Name(spec.buckets[k].kind), " ", Describe(spec, static_cast<int32_t>(k)));
      const auto add = [&](const std::string& track, const char* part, const Span& span) {
        if (span.duration_ps() > 0) {
          spans.push_back({track, absl::StrCat(part, name), span.begin_ps, span.end_ps});
        }
      };
      add("copy in", "copy in: ", t.pack);
      add(absl::StrCat("communication: ", spec.buckets[k].mesh_dim), "", t.wire);
      add("copy out", "copy out: ", t.unpack);
    }
    return spans;
  }

 private:
  struct Tensors {
    std::vector<Tensor> in, out;
  };

  bool CopiesOnCompute(int32_t bucket) const {
    const BucketSpec& spec = plan_.spec.buckets[static_cast<size_t>(bucket)];
    return spec.mode == BucketMode::kPacked && spec.copies == CopyStream::kCompute;
  }

  // Inputs are read only and may be shared by all, outputs by those that one stream writes in turn.
  // As in a step no bucket finds in the caches what the one before it used: they lie one behind the
  // other, and around again after more than caches hold.
  absl::Status MakeTensors() {
    Places in;
    std::map<int, Places> out;
    const auto count = static_cast<int32_t>(plan_.spec.buckets.size());
    for (int32_t k = 0; k < count; ++k) {
      const BucketSpec& spec = plan_.spec.buckets[static_cast<size_t>(k)];
      in.Want(BytesOf(InputsOf(spec), spec.dtype));
      out[WriterOf(k)].Want(BytesOf(OutputsOf(spec), spec.dtype));
    }
    ASSIGN_OR_RETURN(in_, NewMemory(in.bytes()));
    for (const auto& [writer, places] : out) {
      ASSIGN_OR_RETURN(out_[writer], NewMemory(places.bytes()));
    }
    for (int32_t k = 0; k < count; ++k) {
      const BucketSpec& spec = plan_.spec.buckets[static_cast<size_t>(k)];
      const std::vector<int64_t> inputs = InputsOf(spec), outputs = OutputsOf(spec);
      const int writer = WriterOf(k);
      std::byte* from = in_->data() + in.Take(BytesOf(inputs, spec.dtype));
      std::byte* to = out_[writer]->data() + out[writer].Take(BytesOf(outputs, spec.dtype));
      tensors_.push_back({Lay(inputs, spec.dtype, from), Lay(outputs, spec.dtype, to)});
    }
    tickets_.resize(tensors_.size());
    return absl::OkStatus();
  }

  int WriterOf(int32_t bucket) const {
    return CopiesOnCompute(bucket) ? -1 : channel_of_[static_cast<size_t>(bucket)];
  }

  // Written once: pages that nobody wrote are one page of zeros, faster than any memory.
  absl::StatusOr<std::unique_ptr<Buffer>> NewMemory(int64_t bytes) {
    ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, session_.device().Allocate(bytes));
    const std::vector<std::byte> ones(1 << 20, std::byte{1});
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(ones.size())) {
      const int64_t part = std::min(bytes - at, static_cast<int64_t>(ones.size()));
      RETURN_IF_ERROR(session_.device().Copy(*stream_, ones.data(), buffer->data() + at, part));
    }
    RETURN_IF_ERROR(stream_->Record()->Wait(absl::InfiniteFuture()));
    return buffer;
  }

  absl::Status Start(int32_t bucket) {
    const auto k = static_cast<size_t>(bucket);
    Payload payload;
    payload.in = tensors_[k].in;
    if (!CopiesOnCompute(bucket)) payload.out = tensors_[k].out;
    ASSIGN_OR_RETURN(tickets_[k], executor_->Start(bucket, payload));
    return CopiesOnCompute(bucket) ? Compute(bucket, Phase::kPacked) : absl::OkStatus();
  }

  absl::Status End(int32_t bucket) {
    const auto k = static_cast<size_t>(bucket);
    RETURN_IF_ERROR(Compute(bucket, Phase::kArrived));
    const bool packed = plan_.spec.buckets[k].mode == BucketMode::kPacked;
    if (CopiesOnCompute(bucket)) {
      RETURN_IF_ERROR(executor_->Finish(tickets_[k], tensors_[k].out));
    } else if (packed && tensors_[k].out.empty()) {
      RETURN_IF_ERROR(executor_->Finish(tickets_[k], {}));
    }
    return Compute(bucket, Phase::kDone);
  }

  // What the compute stream does, or waits for.
  absl::Status Compute(int32_t bucket, Phase phase) {
    const TicketPtr& ticket = tickets_[static_cast<size_t>(bucket)];
    if (executor_->Wait(ticket, phase, absl::InfinitePast()).ok()) return absl::OkStatus();
    RETURN_IF_ERROR(executor_->Wait(ticket, phase, absl::InfiniteFuture()));
    clock_ = std::max(clock_, Now());
    return absl::OkStatus();
  }

  // The most of all ranks.
  absl::Status Reduce(std::vector<int64_t>& values) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> buffer,
                     session_.device().Allocate(static_cast<int64_t>(values.size()) * 8));
    return ReduceOverRanks(session_.device(), *control_, *stream_, buffer->data(), ReduceOp::kMax,
                           values);
  }

  absl::Status Collect(std::vector<PartTimes>& buckets) {
    constexpr size_t kFigures = 4;
    std::vector<int64_t> figures;
    for (const TicketPtr& ticket : tickets_) {
      ASSIGN_OR_RETURN(const BucketTimes t, executor_->Times(ticket, origin_.get()));
      figures.insert(figures.end(), {t.wire.begin_ps, t.wire.end_ps, t.pack.duration_ps(),
                                     t.unpack.duration_ps()});
    }
    RETURN_IF_ERROR(Reduce(figures));
    buckets.clear();
    for (size_t at = 0; at < figures.size(); at += kFigures) {
      // Origins are those of one barrier, so ranks' clocks are as good as one.
      buckets.push_back({figures[at + 2], figures[at + 1] - figures[at], figures[at + 3]});
    }
    return absl::OkStatus();
  }

  Session& session_;
  const ReplayPlan& plan_;
  std::unique_ptr<Communicator> control_;
  std::unique_ptr<Stream> stream_;
  std::vector<int> channel_of_;  // one a bucket
  std::vector<Tensors> tensors_;
  std::unique_ptr<Buffer> in_;
  std::map<int, std::unique_ptr<Buffer>> out_;
  std::unique_ptr<Executor> executor_;
  std::vector<TicketPtr> tickets_;
  std::shared_ptr<Event> origin_;
  int64_t clock_ = 0;  // when the compute of so far is done, of CLOCK_MONOTONIC
};

}  // namespace

absl::StatusOr<ReplayResult> Replay(Session& session, const ReplayPlan& plan, int rounds) {
  Replayer replayer(session, plan);
  RETURN_IF_ERROR(replayer.Open());
  ReplayResult result;
  std::vector<std::vector<PartTimes>> all(static_cast<size_t>(rounds));
  RETURN_IF_ERROR(replayer.Round(all[0]).status());
  for (std::vector<PartTimes>& buckets : all) {
    ASSIGN_OR_RETURN(const int64_t total, replayer.Round(buckets));
    result.round_ps.push_back(total);
  }
  result.total_ps = Median(result.round_ps);
  for (size_t k = 0; k < plan.spec.buckets.size(); ++k) {
    const auto median = [&](int64_t PartTimes::*part) {
      std::vector<int64_t> values;
      for (const std::vector<PartTimes>& buckets : all) values.push_back(buckets[k].*part);
      return Median(std::move(values));
    };
    result.buckets.push_back({median(&PartTimes::copy_in_ps), median(&PartTimes::wire_ps),
                              median(&PartTimes::copy_out_ps)});
  }
  ASSIGN_OR_RETURN(result.last_round, replayer.Spans());
  return result;
}

}  // namespace bucketd::agent
