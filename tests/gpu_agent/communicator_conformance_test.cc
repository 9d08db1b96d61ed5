// One contract for every communicator: communicator.h, held against reference.h.
#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/gpu_agent/communicator_factory.h"
#include "tests/gpu_agent/reference.h"

namespace bucketd::agent {
namespace {

constexpr int64_t kSegment = 256;  // bytes: many segments in few bytes

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllReduce};

// Every rank of a process group: its device, its stream and its communicator.
class Ranks {
 public:
  Ranks(const CommunicatorFactory& factory, const GroupOptions& options)
      : group_(factory.new_group(options)) {
    std::vector<std::future<absl::StatusOr<std::unique_ptr<Communicator>>>> made;
    for (int rank = 0; rank < options.size; ++rank) {
      made.push_back(std::async(std::launch::async, [&, rank] { return group_->Make(rank); }));
    }
    for (auto& one : made) {
      auto communicator = one.get();
      if (!communicator.ok()) ADD_FAILURE() << communicator.status();
      communicators.push_back(communicator.ok() ? *std::move(communicator) : nullptr);
      devices.push_back(factory.new_device());
      streams.push_back(*devices.back()->NewStream(absl::StrCat("rank ", streams.size())));
    }
  }

  // All at once, as ranks end: some kinds wait for each other there.
  ~Ranks() {
    std::vector<std::future<void>> closes;
    for (auto& one : communicators) {
      closes.push_back(std::async(std::launch::async, [&one] { one = nullptr; }));
    }
  }

  int size() const { return static_cast<int>(communicators.size()); }
  absl::Status Wait(size_t rank) {
    return streams[rank]->Record()->Wait(absl::Now() + absl::Minutes(1));
  }

 private:
  std::unique_ptr<CommunicatorGroup> group_;

 public:
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::unique_ptr<Stream>> streams;
};

// A collective on all ranks, with its payload and its memory.
class Trial {
 public:
  Trial(Ranks& ranks, Collective collective, bool in_place, const CommunicatorFactory& factory)
      : ranks_(ranks), collective_(collective), in_place_(in_place) {
    const int size = ranks.size();
    for (int rank = 0; rank < size; ++rank) {
      inputs_.push_back(PayloadOf(collective, rank, size, !factory.ring_order));
      Device& device = *ranks.devices[static_cast<size_t>(rank)];
      memory_.push_back(
          *device.Allocate(InputBytes(collective, size) + OutputBytes(collective, size)));
      outputs_.emplace_back(static_cast<size_t>(OutputBytes(collective, size)));
      noise_.assign(static_cast<size_t>(memory_.back()->bytes()), std::byte{0xee});
    }
    expected_ = Expected(collective, inputs_, factory.order);
  }

  // What this rank launches.
  Collective Of(size_t rank) const {
    const int64_t in_bytes = InputBytes(collective_, ranks_.size());
    const int64_t out_bytes = OutputBytes(collective_, ranks_.size());
    Collective collective = collective_;
    std::byte* in = memory_[rank]->data();
    std::byte* out = in + in_bytes;
    if (in_place_ && collective.kind == CollectiveKind::kAllGather) {
      out = in;
      in += static_cast<int64_t>(rank) * in_bytes;
    } else if (in_place_) {
      out = in;
      if (collective.kind == CollectiveKind::kReduceScatter) {
        out += static_cast<int64_t>(rank) * out_bytes;
      }
    }
    collective.in = in;
    collective.out = out;
    return collective;
  }

  // Over noise, so that what a launch leaves out shows.
  void CopyIn(size_t rank) {
    Copy(rank, noise_.data(), memory_[rank]->data(), Size(noise_));
    Copy(rank, inputs_[rank].data(), const_cast<void*>(Of(rank).in), Size(inputs_[rank]));
  }

  void CopyOut(size_t rank) {
    Copy(rank, Of(rank).out, outputs_[rank].data(), Size(outputs_[rank]));
  }

  void Check() const {
    for (size_t rank = 0; rank < outputs_.size(); ++rank) {
      EXPECT_TRUE(outputs_[rank] == expected_[rank]) << ToString() << " on rank " << rank;
    }
  }

  std::string ToString() const {
    return absl::StrCat(Name(collective_.kind), " ", Name(collective_.op), " of ",
                        collective_.count, " ", Name(collective_.dtype),
                        in_place_ ? " in place, " : ", ", ranks_.size(), " ranks");
  }

 private:
  static int64_t Size(const Bytes& bytes) { return static_cast<int64_t>(bytes.size()); }
  void Copy(size_t rank, const void* from, void* to, int64_t bytes) {
    ASSERT_TRUE(ranks_.devices[rank]->Copy(*ranks_.streams[rank], from, to, bytes).ok());
  }

  Ranks& ranks_;
  Collective collective_;
  bool in_place_;
  std::vector<Bytes> inputs_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<Bytes> outputs_;
  std::vector<Bytes> expected_;
  Bytes noise_;
};

void LaunchTrials(Ranks& ranks, size_t rank, const std::vector<Trial>& trials, bool grouped) {
  std::vector<Collective> members;
  for (const Trial& trial : trials) members.push_back(trial.Of(rank));
  const size_t step = grouped ? members.size() : 1;
  for (size_t i = 0; i < members.size(); i += step) {
    const absl::Status status = ranks.communicators[rank]->Launch(
        *ranks.streams[rank], absl::MakeConstSpan(members).subspan(i, step));
    ASSERT_TRUE(status.ok()) << status;
  }
}

// Launches all trials, one by one or as a group, and checks them. A thread a rank: the first launch
// of some kinds waits for the others'. Copies are before and behind all ranks' launches, since they
// take memory, and where ranks share a GPU that may wait for whatever runs.
void RunTrials(Ranks& ranks, std::vector<Trial>& trials, bool grouped) {
  const size_t size = ranks.communicators.size();
  for (size_t rank = 0; rank < size; ++rank) {
    for (Trial& trial : trials) trial.CopyIn(rank);
  }
  std::vector<std::future<void>> launches;
  for (size_t rank = 0; rank < size; ++rank) {
    launches.push_back(std::async(std::launch::async, [&ranks, &trials, rank, grouped] {
      LaunchTrials(ranks, rank, trials, grouped);
    }));
  }
  for (auto& launch : launches) launch.get();
  for (size_t rank = 0; rank < size; ++rank) {
    for (Trial& trial : trials) trial.CopyOut(rank);
  }
  for (size_t rank = 0; rank < size; ++rank) {
    const absl::Status status = ranks.Wait(rank);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(ranks.communicators[rank]->health().ok());
  }
  for (const Trial& trial : trials) trial.Check();
}

std::vector<ReduceOp> OpsOf(CollectiveKind kind, DType dtype) {
  if (kind == CollectiveKind::kAllGather) return {ReduceOp::kNone};
  std::vector<ReduceOp> ops;
  for (int op = 1; op <= static_cast<int>(ReduceOp::kBxor); ++op) {
    const Collective collective{.kind = kind, .dtype = dtype, .op = static_cast<ReduceOp>(op)};
    if (Validate(collective, 1).ok()) ops.push_back(collective.op);
  }
  return ops;
}

using Parameter = std::tuple<int, int>;  // factory, ranks

class CommunicatorTest : public testing::TestWithParam<Parameter> {
 protected:
  const CommunicatorFactory& factory() const {
    return Factories()[static_cast<size_t>(std::get<0>(GetParam()))];
  }
  int size() const { return std::get<1>(GetParam()); }

  std::unique_ptr<Ranks> NewRanks(absl::Duration timeout = absl::Minutes(1)) const {
    return std::make_unique<Ranks>(
        factory(), GroupOptions{.size = size(), .max_segment = kSegment, .timeout = timeout});
  }
  Trial NewTrial(Ranks& ranks, CollectiveKind kind, DType dtype, ReduceOp op, int64_t count,
                 bool in_place = false) const {
    const Collective collective{.kind = kind, .count = count, .dtype = dtype, .op = op};
    return Trial(ranks, collective, in_place, factory());
  }
  bool Takes(CollectiveKind kind, DType dtype, ReduceOp op) const {
    const Collective collective{.kind = kind, .dtype = dtype, .op = op};
    return !factory().takes || factory().takes(collective, size());
  }
  // Of f32: on either side of a segment's end, of a chunk of an all-reduce too; and many segments.
  std::vector<int64_t> Counts() const {
    const int64_t segment = kSegment / 4;
    std::vector<int64_t> counts = {0, 1, 2, 3, 7, segment - 1, segment, segment + 1};
    for (const int64_t more : {-1, 0, 1}) counts.push_back(segment * size() + more);
    counts.push_back(2 * segment * size() + 1);
    counts.push_back(3'001);
    return counts;
  }
};

TEST_P(CommunicatorTest, GivesTheBitsOfTheRingOrderForEveryDtypeAndOp) {
  const auto ranks = NewRanks();
  std::vector<Trial> trials;
  int all = 0;
  for (int dtype = 1; dtype <= static_cast<int>(DType::kC128); ++dtype) {
    for (const CollectiveKind kind : kKinds) {
      for (const ReduceOp op : OpsOf(kind, static_cast<DType>(dtype))) {
        ++all;
        if (!Takes(kind, static_cast<DType>(dtype), op)) continue;
        trials.push_back(NewTrial(*ranks, kind, static_cast<DType>(dtype), op, 77));
      }
    }
  }
  ASSERT_EQ(all, 211);
  RunTrials(*ranks, trials, false);
  RunTrials(*ranks, trials, true);
}

TEST_P(CommunicatorTest, TakesEverySizeAroundTheSegmentsInAndOutOfPlace) {
  const auto ranks = NewRanks();
  std::vector<Trial> trials;
  for (const bool in_place : {false, true}) {
    for (const CollectiveKind kind : kKinds) {
      const bool gather = kind == CollectiveKind::kAllGather;
      const bool averages = gather || Takes(kind, DType::kBF16, ReduceOp::kAvg);
      const ReduceOp average = averages ? ReduceOp::kAvg : ReduceOp::kMax;
      for (const int64_t count : Counts()) {
        trials.push_back(NewTrial(*ranks, kind, DType::kF32,
                                  gather ? ReduceOp::kNone : ReduceOp::kSum, count, in_place));
        trials.push_back(NewTrial(*ranks, kind, DType::kBF16, gather ? ReduceOp::kNone : average,
                                  count, in_place));
      }
    }
  }
  RunTrials(*ranks, trials, false);
  RunTrials(*ranks, trials, true);
}

TEST_P(CommunicatorTest, TakesMoreThanSocketsHold) {
  Ranks ranks(factory(), GroupOptions{.size = size()});
  std::vector<Trial> trials;
  trials.push_back(
      NewTrial(ranks, CollectiveKind::kAllGather, DType::kU8, ReduceOp::kNone, 4 << 20));
  trials.push_back(
      NewTrial(ranks, CollectiveKind::kReduceScatter, DType::kU8, ReduceOp::kSum, 300'001));
  trials.push_back(
      NewTrial(ranks, CollectiveKind::kAllReduce, DType::kU32, ReduceOp::kMax, 500'003));
  RunTrials(ranks, trials, true);
}

TEST_P(CommunicatorTest, RefusesAWholeGroupForOneWrongMember) {
  const auto ranks = NewRanks();
  std::byte memory[64];
  const Collective good{.kind = CollectiveKind::kAllGather,
                        .in = memory,
                        .out = memory + 8,
                        .count = 1,
                        .dtype = DType::kF64};
  Collective overlapping = good;
  overlapping.out = memory + 1;
  const Collective group[] = {good, overlapping};
  const absl::Status status = ranks->communicators[0]->Launch(*ranks->streams[0], group);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("collective 1 of 2"));
  EXPECT_TRUE(ranks->Wait(0).ok());  // nothing was enqueued, or it would wait for the others
  EXPECT_TRUE(ranks->communicators[0]->health().ok());
}

TEST_P(CommunicatorTest, TellsWhatItIs) {
  const auto ranks = NewRanks();
  for (int rank = 0; rank < size(); ++rank) {
    const Communicator& communicator = *ranks->communicators[static_cast<size_t>(rank)];
    EXPECT_EQ(communicator.rank(), rank);
    EXPECT_EQ(communicator.size(), size());
    EXPECT_THAT(communicator.ToString(), testing::HasSubstr(absl::StrCat("of ", size(), " rank")));
  }
}

TEST_P(CommunicatorTest, TakesNothingMoreAfterAbort) {
  const auto ranks = NewRanks();
  ranks->communicators[0]->Abort("enough");
  ranks->communicators[0]->Abort("again");
  const absl::Status status = ranks->communicators[0]->Launch(*ranks->streams[0], {});
  EXPECT_EQ(status, absl::AbortedError("enough"));
  EXPECT_EQ(ranks->communicators[0]->health(), status);
}

// Groups of two ranks and more: what happens when not all take part.
class PeersTest : public CommunicatorTest {
 protected:
  // Of one element; the rank waits for the others.
  void LaunchOn(Ranks& ranks, size_t rank, Trial& trial) {
    trial.CopyIn(rank);
    ASSERT_TRUE(ranks.communicators[rank]->Launch(*ranks.streams[rank], {trial.Of(rank)}).ok());
  }
  Trial Any(Ranks& ranks) const {
    return NewTrial(ranks, CollectiveKind::kAllReduce, DType::kF32, ReduceOp::kSum, 1000);
  }
};

TEST_P(PeersTest, GetAnErrorThatNamesTheRankThatDied) {
  const auto ranks = NewRanks();
  Trial trial = Any(*ranks);
  for (size_t rank = 0; rank < ranks->communicators.size(); ++rank) {
    if (rank != 1) LaunchOn(*ranks, rank, trial);
  }
  ranks->communicators[1].reset();
  int named = 0;
  for (size_t rank = 0; rank < ranks->communicators.size(); ++rank) {
    if (rank == 1) continue;
    const absl::Status status = ranks->Wait(rank);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ranks->communicators[rank]->health(), status);
    EXPECT_EQ(ranks->communicators[rank]->Launch(*ranks->streams[rank], {}), status);
    const std::string text(status.message());
    EXPECT_THAT(text, testing::HasSubstr(absl::StrCat("neighbour of rank ", rank)));
    if (text.rfind("rank 1, the ", 0) == 0) ++named;
  }
  EXPECT_GE(named, 1);
}

TEST_P(PeersTest, SeeAClosedConnectionWhenOneAborts) {
  const auto ranks = NewRanks();
  Trial trial = Any(*ranks);
  for (size_t rank = 0; rank + 1 < ranks->communicators.size(); ++rank) {
    LaunchOn(*ranks, rank, trial);
  }
  ranks->communicators[0]->Abort("enough");
  EXPECT_EQ(ranks->Wait(0), absl::AbortedError("enough"));
  LaunchOn(*ranks, ranks->communicators.size() - 1, trial);
  for (size_t rank = 1; rank < ranks->communicators.size(); ++rank) {
    EXPECT_EQ(ranks->Wait(rank).code(), absl::StatusCode::kUnavailable);
  }
}

TEST_P(PeersTest, ThatDoNotComeAreGivenUpAtTheTimeout) {
  const auto ranks = NewRanks(absl::Milliseconds(1));
  Trial trial = Any(*ranks);
  LaunchOn(*ranks, 0, trial);
  const absl::Status status = ranks->Wait(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr(absl::StrCat(
                  "rank 0 waited too long for rank ",
                  (size() + (factory().order == RingOrder::kGloo ? 1 : -1)) % size())));
}

TEST_P(PeersTest, MayLeaveWhenTheirPartIsDone) {
  const auto ranks = NewRanks();
  std::vector<Trial> trials;
  trials.push_back(Any(*ranks));
  for (size_t rank = 0; rank < ranks->communicators.size(); ++rank) {
    LaunchOn(*ranks, rank, trials[0]);
    trials[0].CopyOut(rank);
  }
  for (size_t rank = 0; rank < ranks->communicators.size(); ++rank) {
    ASSERT_TRUE(ranks->Wait(rank).ok());
    ranks->communicators[rank].reset();  // the next ones may still be receiving
  }
  trials[0].Check();
}

std::vector<Parameter> Parameters(bool peers) {
  std::vector<Parameter> parameters;
  for (size_t factory = 0; factory < Factories().size(); ++factory) {
    if (peers && !Factories()[factory].tells_of_peers) continue;
    for (int ranks = peers ? 2 : 1; ranks <= Factories()[factory].max_ranks; ++ranks) {
      parameters.emplace_back(static_cast<int>(factory), ranks);
    }
  }
  return parameters;
}

std::string InstanceName(const testing::TestParamInfo<Parameter>& info) {
  return absl::StrCat(Factories()[static_cast<size_t>(std::get<0>(info.param))].name, "Of",
                      std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorTest, testing::ValuesIn(Parameters(false)), InstanceName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PeersTest);  // of kinds that do not tell of peers
INSTANTIATE_TEST_SUITE_P(All, PeersTest, testing::ValuesIn(Parameters(true)), InstanceName);

}  // namespace
}  // namespace bucketd::agent
