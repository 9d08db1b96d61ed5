#include "gpu_agent/exec/executor.h"

#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/gpu_agent/executor_fixture.h"
#include "tests/gpu_agent/set_clocks.h"

namespace bucketd::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllReduce};
constexpr absl::Time kNever = absl::InfiniteFuture();

// Starts and waits, and says what went wrong.
std::string RunOnce(Executor& executor, int32_t bucket, int rank, DType dtype,
                    int64_t short_by = 0) {
  const BucketSpec& spec = executor.program().plan.buckets[static_cast<size_t>(bucket)];
  BucketData data = MakeData(spec, rank, dtype, short_by);
  const std::vector<Tensor> in = data.ins(), out = data.outs();
  const absl::StatusOr<TicketPtr> ticket =
      executor.Start(bucket, {.in = in, .out = out, .after = nullptr});
  if (!ticket.ok()) return ticket.status().ToString();
  const absl::Status done = executor.Wait(*ticket, Phase::kDone, kNever);
  return done.ok() ? Mistake(spec, rank, data, short_by) : done.ToString();
}

class EveryBucketTest : public testing::TestWithParam<std::tuple<CollectiveKind, int, CopyStream>> {
 protected:
  // Of members that end at, before and behind an aligned offset.
  void Run(BucketMode mode, DType wire, DType tensors, int64_t short_by) {
    const auto [kind, ranks, copies] = GetParam();
    BucketSpec spec = Spec(kind, mode, wire, ranks, {64, 1, 0, 33, 3000, 65});
    spec.copies = copies;
    const Program program = ProgramOf({spec});
    auto group = RingOfThreads(ranks);
    OnRanks(ranks, [&](int rank) {
      auto executor = OpenExecutor(program, std::move(group[static_cast<size_t>(rank)]));
      ASSERT_TRUE(executor.ok()) << executor.status();
      for (int round = 0; round < 2; ++round) {
        EXPECT_EQ(RunOnce(**executor, 0, rank, tensors, short_by), "");
      }
    });
  }
};

TEST_P(EveryBucketTest, PackedGivesWhatItsMembersGiveAlone) {
  Run(BucketMode::kPacked, DType::kF32, DType::kF32, 0);
  Run(BucketMode::kPacked, DType::kBF16, DType::kBF16, 0);
  Run(BucketMode::kPacked, DType::kI32, DType::kI32, 0);
}

TEST_P(EveryBucketTest, GroupedGivesWhatItsMembersGiveAlone) {
  Run(BucketMode::kGrouped, DType::kF32, DType::kF32, 0);
  Run(BucketMode::kGrouped, DType::kBF16, DType::kBF16, 0);
}

TEST_P(EveryBucketTest, PackedCastsBothWays) {
  Run(BucketMode::kPacked, DType::kBF16, DType::kF32, 0);
  Run(BucketMode::kPacked, DType::kF32, DType::kBF16, 0);
}

TEST_P(EveryBucketTest, PackedTakesMembersThatDoNotDivide) {
  if (std::get<0>(GetParam()) == CollectiveKind::kAllReduce) return;
  for (const int64_t short_by : {1, 32, 40}) {
    Run(BucketMode::kPacked, DType::kF32, DType::kF32, short_by);
    Run(BucketMode::kPacked, DType::kBF16, DType::kF32, short_by);
  }
}

INSTANTIATE_TEST_SUITE_P(KindsAndRanks, EveryBucketTest,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Values(1, 2, 3),
                                          testing::Values(CopyStream::kCompute, CopyStream::kComm)),
                         [](const auto& param) {
                           return absl::StrCat(Name(std::get<0>(param.param)), "_over_",
                                               std::get<1>(param.param), "_copies_on_",
                                               Name(std::get<2>(param.param)));
                         });

std::vector<BucketSpec> ThreeBuckets(int ranks) {
  return {Spec(kKinds[0], BucketMode::kPacked, DType::kF32, ranks, {100, 7}),
          Spec(kKinds[1], BucketMode::kPacked, DType::kBF16, ranks, {31, 2000}),
          Spec(kKinds[2], BucketMode::kGrouped, DType::kF32, ranks, {55, 9})};
}

// Two ranks that launched in the order of their calls would gather what the other one reduces.
TEST(ExecutorTest, RunsBucketsInThePlansOrderWhateverTheOrderOfStarts) {
  const Program program = ProgramOf(ThreeBuckets(2));
  auto group = RingOfThreads(2);
  OnRanks(2, [&](int rank) {
    auto executor = OpenExecutor(program, std::move(group[static_cast<size_t>(rank)]));
    ASSERT_TRUE(executor.ok()) << executor.status();
    std::vector<BucketData> data;
    std::vector<std::pair<int32_t, TicketPtr>> tickets;
    for (const BucketSpec& spec : program.plan.buckets)
      data.push_back(MakeData(spec, rank, spec.dtype));
    for (int32_t i = 0; i < 3; ++i) {
      const int32_t bucket = rank == 0 ? i : 2 - i;
      BucketData& mine = data[static_cast<size_t>(bucket)];
      const std::vector<Tensor> in = mine.ins(), out = mine.outs();
      const auto ticket = (*executor)->Start(bucket, {in, out, nullptr});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      tickets.emplace_back(bucket, *ticket);
      if (rank == 1 && bucket > 0) {
        EXPECT_THAT((*executor)->Wait(*ticket, Phase::kArrived, absl::InfinitePast()).ToString(),
                    AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("waits for its turn")));
        EXPECT_THAT((*executor)->Start(bucket, {in, out, nullptr}).status().ToString(),
                    HasSubstr("was started and waits for its turn"));
      }
    }
    for (const auto& [bucket, ticket] : tickets) {
      const auto k = static_cast<size_t>(bucket);
      EXPECT_TRUE((*executor)->Wait(ticket, Phase::kDone, kNever).ok());
      EXPECT_EQ(Mistake(program.plan.buckets[k], rank, data[k]), "");
      const auto times = (*executor)->Times(ticket);
      ASSERT_TRUE(times.ok()) << times.status();
      EXPECT_GT(times->wire.duration_ps(), 0);
      EXPECT_GE(times->wire.begin_ps, times->pack.end_ps);
      EXPECT_EQ(times->pack.duration_ps() > 0, bucket < 2);
      EXPECT_EQ(times->unpack.begin_ps >= times->wire.end_ps, bucket < 2);
    }
  });
}

// What each rank is told when it opens an executor.
std::vector<std::string> Verdicts(const std::vector<Program>& programs,
                                  const std::vector<uint64_t>& epochs) {
  const auto ranks = static_cast<int>(programs.size());
  auto group = RingOfThreads(ranks);
  std::vector<std::string> verdicts(programs.size());
  OnRanks(ranks, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    ExecutorOptions options;
    options.epoch = epochs[r];
    verdicts[r] = OpenExecutor(programs[r], std::move(group[r]), options).status().ToString();
  });
  return verdicts;
}

TEST(ExecutorTest, ARankWithAnotherPlanIsNamedByAll) {
  const Program plan = ProgramOf(ThreeBuckets(3));
  std::vector<BucketSpec> others = ThreeBuckets(3);
  ++others[1].counts[0];
  const Program other = ProgramOf(others);
  for (const std::string& verdict : Verdicts({plan, other, plan}, {4, 4, 4})) {
    EXPECT_THAT(
        verdict,
        AllOf(HasSubstr("FAILED_PRECONDITION"),
              HasSubstr(absl::StrCat("ranks 0, 2 have plan ", ToHex(plan.digest).substr(0, 8))),
              HasSubstr(absl::StrCat("rank 1 has plan ", ToHex(other.digest).substr(0, 8)))));
  }
}

TEST(ExecutorTest, ARankOfAnotherEpochIsNamedByAll) {
  const Program plan = ProgramOf(ThreeBuckets(2));
  for (const std::string& verdict : Verdicts({plan, plan}, {4, 5})) {
    EXPECT_THAT(verdict, AllOf(HasSubstr("rank 0 has plan"), HasSubstr("of epoch 4"),
                               HasSubstr("of epoch 5")));
  }
}

TEST(ExecutorTest, AnotherGroupSizeThanTheCommunicatorsIsRefused) {
  EXPECT_THAT(
      OpenExecutor(ProgramOf(ThreeBuckets(3)), std::move(RingOfThreads(1)[0])).status().ToString(),
      AllOf(HasSubstr("bucket 0: is planned over 3 ranks"), HasSubstr("ring of 1 rank")));
  std::vector<BucketSpec> elsewhere = ThreeBuckets(1);
  elsewhere[2].mesh_dim = "tp";
  EXPECT_THAT(
      OpenExecutor(ProgramOf(elsewhere), std::move(RingOfThreads(1)[0])).status().ToString(),
      HasSubstr("bucket 2: there is no communicator for \"tp\""));
}

// A communicator that writes down what is registered, or refuses.
class RegisteringCommunicator final : public Communicator {
 public:
  RegisteringCommunicator(std::unique_ptr<Communicator> below, bool refuses,
                          std::vector<std::string>& calls)
      : below_(std::move(below)), refuses_(refuses), calls_(calls) {}
  ~RegisteringCommunicator() override { calls_.push_back("destroyed"); }
  absl::Status Launch(Stream& stream, absl::Span<const Collective> group) override {
    return below_->Launch(stream, group);
  }
  absl::Status Register(std::byte* data, int64_t bytes) override {
    data_ = data;
    calls_.push_back(absl::StrCat("register ", bytes));
    return refuses_ ? absl::InvalidArgumentError("not of that kind") : absl::OkStatus();
  }
  absl::Status Deregister(std::byte* data) override {
    calls_.push_back(data == data_ ? "deregister" : "deregister another");
    return absl::OkStatus();
  }
  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  std::string ToString() const override { return below_->ToString(); }
  absl::Status health() const override { return below_->health(); }
  void Abort(const std::string& why) override { below_->Abort(why); }

 private:
  const std::unique_ptr<Communicator> below_;
  const bool refuses_;
  std::vector<std::string>& calls_;
  std::byte* data_ = nullptr;
};

// What two ranks, of which the second may refuse, register while buckets run.
std::vector<std::vector<std::string>> Registrations(const Program& program, bool refuses) {
  auto group = RingOfThreads(2);
  std::vector<std::vector<std::string>> calls(2);
  OnRanks(2, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    auto executor = OpenExecutor(program, std::make_unique<RegisteringCommunicator>(
                                              std::move(group[r]), refuses && rank == 1, calls[r]));
    ASSERT_TRUE(executor.ok()) << executor.status();
    EXPECT_EQ(RunOnce(**executor, 0, rank, DType::kF32), "");
  });
  return calls;
}

TEST(ExecutorTest, RegistersTheBucketsMemoryUntilTheCommunicatorGoes) {
  const Program program = ProgramOf(ThreeBuckets(2));
  const std::string known = absl::StrCat("register ", program.memory_bytes);
  for (const auto& calls : Registrations(program, false)) {
    EXPECT_THAT(calls, testing::ElementsAre(known, "destroyed"));
  }
  // Grouped buckets have no memory.
  const Program none = ProgramOf({Spec(kKinds[0], BucketMode::kGrouped, DType::kF32, 2, {9})});
  for (const auto& calls : Registrations(none, false)) {
    EXPECT_THAT(calls, testing::ElementsAre("destroyed"));
  }
}

TEST(ExecutorTest, WhereOneRanksMemoryIsRefusedAllRunUnregistered) {
  const Program program = ProgramOf(ThreeBuckets(2));
  const std::string known = absl::StrCat("register ", program.memory_bytes);
  testing::internal::CaptureStderr();
  const auto calls = Registrations(program, true);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(calls[0], testing::ElementsAre(known, "deregister", "destroyed"));
  EXPECT_THAT(calls[1], testing::ElementsAre(known, "destroyed"));
  EXPECT_THAT(said, AllOf(HasSubstr("rank 0 runs without registered memory: another rank's"),
                          HasSubstr("rank 1 runs without registered memory: not of that kind")));
}

TEST(ExecutorTest, AbortFailsEveryTicketThatIsNotDone) {
  const Program program = ProgramOf(ThreeBuckets(2));
  auto group = RingOfThreads(2);
  OnRanks(2, [&](int rank) {
    auto opened = OpenExecutor(program, std::move(group[static_cast<size_t>(rank)]));
    ASSERT_TRUE(opened.ok()) << opened.status();
    Executor& executor = **opened;
    EXPECT_EQ(RunOnce(executor, 0, rank, DType::kF32), "");
    // Rank 1 never comes to bucket 1, and dies.
    if (rank == 1) return;
    std::vector<BucketData> data;
    std::vector<TicketPtr> tickets;
    for (const int32_t bucket : {1, 0}) {  // the second one waits for bucket 2's turn
      const BucketSpec& spec = program.plan.buckets[static_cast<size_t>(bucket)];
      data.push_back(MakeData(spec, rank, spec.dtype));
      const std::vector<Tensor> in = data.back().ins(), out = data.back().outs();
      const auto ticket = executor.Start(bucket, {in, out, nullptr});
      if (ticket.ok()) tickets.push_back(*ticket);  // unless the death was seen already
    }
    executor.Abort("the job was cancelled");
    for (const TicketPtr& ticket : tickets) {
      EXPECT_FALSE(executor.Wait(ticket, Phase::kDone, kNever).ok());
    }
    EXPECT_FALSE(executor.health().ok());
    EXPECT_FALSE(executor.Start(2, {}).ok());
  });
}

TEST(ExecutorTest, ABucketThatAPeerNeverStartsFailsAtTheTimeout) {
  const Program program = ProgramOf(ThreeBuckets(2));
  auto group = RingOfThreads(2);
  std::vector<std::unique_ptr<Executor>> executors(2);
  ExecutorOptions options;
  options.timeout = absl::Seconds(2);
  OnRanks(2, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    executors[r] = OpenExecutor(program, std::move(group[r]), options).value();
  });
  EXPECT_THAT(RunOnce(*executors[0], 0, 0, DType::kF32),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("bucket 0: did not end within 2s"),
                    HasSubstr("ring of 2 ranks")));
}

TEST(ExecutorTest, AWallClockThatIsSetEndsNoBucketAndNoWait) {
  const Program program = ProgramOf(ThreeBuckets(2));
  auto group = RingOfThreads(2);
  std::vector<std::unique_ptr<Executor>> executors(2);
  OnRanks(2, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    executors[r] = OpenExecutor(program, std::move(group[r])).value();
  });
  std::thread early([&] { EXPECT_EQ(RunOnce(*executors[0], 0, 0, DType::kF32), ""); });
  const ClockIsOff clock(CLOCK_REALTIME, absl::Hours(1));
  absl::SleepFor(absl::Seconds(2));  // it is looked at each second
  EXPECT_EQ(executors[0]->health(), absl::OkStatus());
  clock.Set(-absl::Hours(1));
  const BucketSpec& spec = program.plan.buckets[2];
  BucketData data = MakeData(spec, 1, spec.dtype);
  const std::vector<Tensor> in = data.ins(), out = data.outs();
  const TicketPtr later = executors[1]->Start(2, {in, out, nullptr}).value();
  std::thread waiter([&] {
    const auto waited = executors[1]->Wait(later, Phase::kDone, absl::Now() + absl::Minutes(1));
    EXPECT_TRUE(absl::IsAborted(waited)) << waited;
  });
  absl::SleepFor(absl::Milliseconds(100));
  clock.Set(absl::Hours(1));
  EXPECT_EQ(RunOnce(*executors[1], 0, 1, DType::kF32), "");
  early.join();
  executors[1]->Abort("it has waited long enough");
  waiter.join();
}

TEST(ExecutorTest, APeerThatDiesEndsTheOthersBuckets) {
  const Program program = ProgramOf(ThreeBuckets(2));
  auto group = RingOfThreads(2);
  OnRanks(2, [&](int rank) {
    auto executor = OpenExecutor(program, std::move(group[static_cast<size_t>(rank)]));
    ASSERT_TRUE(executor.ok()) << executor.status();
    if (rank == 1) return;
    EXPECT_THAT(RunOnce(**executor, 0, 0, DType::kF32), HasSubstr("bucket 0"));
    EXPECT_FALSE((*executor)->health().ok());
  });
}

// Both buckets have the same bytes: the second one's copy-in would overwrite the first one's
// result.
TEST(ExecutorTest, ABucketIsNotLaunchedBeforeItsMemoryIsFinishedWith) {
  const Program program = ProgramOf({Spec(kKinds[0], BucketMode::kPacked, DType::kF32, 2, {500}),
                                     Spec(kKinds[0], BucketMode::kPacked, DType::kF32, 2, {400})},
                                    /*one_at_a_time=*/true);
  auto group = RingOfThreads(2);
  OnRanks(2, [&](int rank) {
    auto opened = OpenExecutor(program, std::move(group[static_cast<size_t>(rank)]));
    ASSERT_TRUE(opened.ok()) << opened.status();
    Executor& executor = **opened;
    BucketData first = MakeData(program.plan.buckets[0], rank, DType::kF32);
    BucketData second = MakeData(program.plan.buckets[1], rank, DType::kF32);
    const TicketPtr a = executor.Start(0, {first.ins(), {}, nullptr}).value();
    const TicketPtr b = executor.Start(1, {second.ins(), second.outs(), nullptr}).value();
    EXPECT_TRUE(executor.Wait(a, Phase::kArrived, kNever).ok());
    EXPECT_THAT(executor.Wait(a, Phase::kDone, absl::InfinitePast()).ToString(),
                HasSubstr("was not finished"));
    EXPECT_THAT(executor.Wait(b, Phase::kPacked, absl::InfinitePast()).ToString(),
                HasSubstr("waits for its turn"));
    EXPECT_TRUE(executor.Finish(a, first.outs()).ok());
    EXPECT_TRUE(executor.Wait(b, Phase::kDone, kNever).ok());
    EXPECT_TRUE(executor.Wait(a, Phase::kDone, kNever).ok());
    EXPECT_EQ(Mistake(program.plan.buckets[0], rank, first), "");
    EXPECT_EQ(Mistake(program.plan.buckets[1], rank, second), "");
    EXPECT_THAT(executor.Finish(a, {}).ToString(), HasSubstr("has nothing to finish"));
  });
}

// Copies of which the second one stands until it is let go.
class GatedDevice final : public Device {
 public:
  std::string name() const override { return host_.name(); }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    return host_.Allocate(bytes);
  }
  absl::StatusOr<std::unique_ptr<Stream>> NewStream(const std::string& name) override {
    return host_.NewStream(name);
  }
  absl::Status Copy(Stream& stream, const void* from, void* to, int64_t bytes) override {
    return host_.Copy(stream, from, to, bytes);
  }
  absl::Status CopyTiles(Stream& stream, TileList tiles) override {
    if (++copies_ == 2) {
      AsHostStream(stream)->Enqueue([this] {
        const std::lock_guard wait(gate);
        return absl::OkStatus();
      });
    }
    return host_.CopyTiles(stream, std::move(tiles));
  }
  std::mutex gate;

 private:
  HostDevice host_;
  int copies_ = 0;
};

TEST(ExecutorTest, ACopyInWaitsForTheCopyOutOfThoseWhoseMemoryItWas) {
  const Program program = ProgramOf({Spec(kKinds[0], BucketMode::kPacked, DType::kF32, 1, {500}),
                                     Spec(kKinds[0], BucketMode::kPacked, DType::kF32, 1, {400})},
                                    /*one_at_a_time=*/true);
  GatedDevice device;
  std::vector<Channel> channels;
  channels.push_back({"dp", 0, std::move(RingOfThreads(1)[0])});
  auto executor = Executor::Create(device, program, std::move(channels), {}).value();
  BucketData first = MakeData(program.plan.buckets[0], 0, DType::kF32);
  BucketData second = MakeData(program.plan.buckets[1], 0, DType::kF32);
  device.gate.lock();
  const TicketPtr a = executor->Start(0, {first.ins(), first.outs(), nullptr}).value();
  const TicketPtr b = executor->Start(1, {second.ins(), second.outs(), nullptr}).value();
  EXPECT_EQ(executor->Wait(b, Phase::kPacked, absl::Now() + absl::Milliseconds(100)).code(),
            absl::StatusCode::kDeadlineExceeded);
  device.gate.unlock();
  EXPECT_TRUE(executor->Wait(b, Phase::kDone, kNever).ok());
  EXPECT_TRUE(executor->done(a));
  EXPECT_EQ(Mistake(program.plan.buckets[0], 0, first), "");
  EXPECT_EQ(Mistake(program.plan.buckets[1], 0, second), "");
}

TEST(ExecutorTest, CopiesInAfterTheEventOfTheTensors) {
  const Program program = ProgramOf({Spec(kKinds[2], BucketMode::kPacked, DType::kF32, 1, {10})});
  HostDevice device;
  const std::unique_ptr<Stream> compute = *device.NewStream("compute");
  auto executor = OpenExecutor(program, std::move(RingOfThreads(1)[0])).value();
  std::vector<float> in(10, 1.0F), out(10, 0.0F), late(10, 7.0F);
  const Tensor from{reinterpret_cast<std::byte*>(in.data()), 10, DType::kF32};
  const Tensor to{reinterpret_cast<std::byte*>(out.data()), 10, DType::kF32};
  // The stream stands until the bucket was started.
  std::mutex gate;
  gate.lock();
  AsHostStream(*compute)->Enqueue([&] {
    const std::lock_guard wait(gate);
    return absl::OkStatus();
  });
  ASSERT_TRUE(device.Copy(*compute, late.data(), in.data(), 40).ok());
  const auto ticket = executor->Start(0, {{&from, 1}, {&to, 1}, compute->Record()});
  EXPECT_FALSE(executor->done(*ticket));
  gate.unlock();
  ASSERT_TRUE(executor->Wait(*ticket, Phase::kDone, kNever).ok());
  EXPECT_EQ(out, late);
  EXPECT_TRUE(executor->done(*ticket));
}

TEST(ExecutorTest, RefusesTensorsThatDoNotFitAndNamesTheMember) {
  const Program program = ProgramOf(ThreeBuckets(1));
  auto executor = OpenExecutor(program, std::move(RingOfThreads(1)[0])).value();
  const auto refusal = [&](int32_t bucket, std::vector<Tensor> in, std::vector<Tensor> out) {
    return executor->Start(bucket, {in, out, nullptr}).status().ToString();
  };
  Values big(DType::kF32, 200), small(DType::kF32, 7);
  const Tensor t = big.tensor(), s = small.tensor(), f{s.data, 7, DType::kF16};
  EXPECT_THAT(refusal(0, {t, s}, {}),
              HasSubstr("bucket 0 member 0: has 200 elements, expected 0 to 100"));
  EXPECT_THAT(refusal(0, {s}, {}),
              HasSubstr("bucket 0: got 1 tensors, expected one for each of 2"));
  EXPECT_THAT(refusal(0, {f, s}, {}), HasSubstr("bucket 0 member 0"));
  EXPECT_THAT(refusal(2, {s, s}, {s, s}),
              HasSubstr("bucket 2 member 0: is grouped, so without copies: expected 55 elements"));
  EXPECT_THAT(refusal(2, {s, s}, {}), HasSubstr("got 2 and 0 tensors"));
  EXPECT_THAT(refusal(3, {}, {}), HasSubstr("there is no bucket 3 among 3"));
  EXPECT_EQ(RunOnce(*executor, 0, 0, DType::kF32), "");
}

}  // namespace
}  // namespace bucketd::agent
