// Ranks that meet at a server, through real gRPC.
#include "server/agents/rendezvous.h"

#include <algorithm>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "proto/agent.grpc.pb.h"
#include "server/base/errors.h"
#include "server/base/timers.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Met {
  grpc::Status status;
  v1::RendezvousResponse response;
};

v1::RendezvousRequest Rank(uint32_t rank, uint32_t size) {
  v1::RendezvousRequest request;
  request.set_group("job/dp_shard/0");
  request.set_rank(rank);
  request.set_size(size);
  request.set_endpoint(absl::StrCat("unix:/tmp/rank", rank));
  return request;
}

class RendezvousTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    StartServer();
    agents_ = v1::Agents::NewStub(NewChannel());
  }

  Met Meet(const v1::RendezvousRequest& request, milliseconds deadline = milliseconds(60'000)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    Met met;
    met.status = agents_->Rendezvous(&context, request, &met.response);
    return met;
  }
  std::future<Met> MeetLater(const v1::RendezvousRequest& request,
                             milliseconds deadline = milliseconds(60'000)) {
    return std::async(std::launch::async, [=, this] { return Meet(request, deadline); });
  }
  bool EventuallyInFlight(const std::string& method, int calls) {
    return Eventually(
        [&] { return Metric("bucketd_requests_in_flight", "method", method) == calls; });
  }
  // All `size` ranks at once; the epoch.
  uint64_t MeetAll(uint32_t size) {
    std::vector<std::future<Met>> ranks;
    for (uint32_t rank = 0; rank < size; ++rank) ranks.push_back(MeetLater(Rank(rank, size)));
    uint64_t epoch = 0;
    for (std::future<Met>& rank : ranks) {
      const Met met = rank.get();
      EXPECT_TRUE(met.status.ok()) << met.status.error_message();
      epoch = met.response.epoch();
    }
    return epoch;
  }

  std::pair<grpc::Status, v1::WatchEpochResponse> Watch(uint64_t epoch, milliseconds deadline) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    v1::WatchEpochRequest request;
    request.set_group("job/dp_shard/0");
    request.set_epoch(epoch);
    std::pair<grpc::Status, v1::WatchEpochResponse> fate;
    fate.first = agents_->WatchEpoch(&context, request, &fate.second);
    return fate;
  }
  grpc::Status End(uint64_t epoch, uint32_t rank, const std::string& why) {
    grpc::ClientContext context;
    v1::EndEpochRequest request;
    request.set_group("job/dp_shard/0");
    request.set_epoch(epoch);
    request.set_rank(rank);
    request.set_why(why);
    v1::EndEpochResponse response;
    return agents_->EndEpoch(&context, request, &response);
  }

  std::unique_ptr<v1::Agents::Stub> agents_;
};

TEST_F(RendezvousTest, AllRanksGetOneSecretOneEpochAndEveryonesEndpoint) {
  std::vector<std::future<Met>> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) ranks.push_back(MeetLater(Rank(3 - rank, 4)));
  std::set<std::string> tokens;
  std::set<uint64_t> epochs;
  for (std::future<Met>& rank : ranks) {
    const Met met = rank.get();
    ASSERT_TRUE(met.status.ok()) << met.status.error_message();
    tokens.insert(met.response.token());
    epochs.insert(met.response.epoch());
    EXPECT_THAT(met.response.endpoints(), ElementsAre("unix:/tmp/rank0", "unix:/tmp/rank1",
                                                      "unix:/tmp/rank2", "unix:/tmp/rank3"));
  }
  EXPECT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens.begin()->size(), 32u);
  EXPECT_EQ(epochs.size(), 1u);
}

TEST_F(RendezvousTest, EpochsGrowAndEachHasItsOwnSecret) {
  const Met first = Meet(Rank(0, 1)), second = Meet(Rank(0, 1));
  EXPECT_GT(second.response.epoch(), first.response.epoch());
  EXPECT_NE(second.response.token(), first.response.token());
}

TEST_F(RendezvousTest, RanksThatDoNotComeAreNamed) {
  std::future<Met> zero = MeetLater(Rank(0, 4), milliseconds(800));
  const Met two = Meet(Rank(2, 4), milliseconds(600));
  EXPECT_EQ(ReasonOf(two.status), "RANKS_MISSING");
  EXPECT_THAT(two.status.error_message(), HasSubstr("ranks 1 and 3 of 4 did not come in time"));
  // By then rank 2 has given up: it did come.
  EXPECT_THAT(zero.get().status.error_message(),
              HasSubstr("ranks 1 and 3 of 4 did not come in time"));
  EXPECT_THAT(Meet(Rank(1, 4), milliseconds(400)).status.error_message(),
              HasSubstr("ranks 0 and 2, 3 of 4 did not come in time"))
      << "what was is forgotten";
}

TEST_F(RendezvousTest, WhereAllCameButNotAtOneTimeThoseThatLeftAreNamed) {
  std::future<Met> zero = MeetLater(Rank(0, 3), milliseconds(2000));
  EXPECT_THAT(Meet(Rank(2, 3), milliseconds(400)).status.error_message(),
              HasSubstr("rank 1 of 3 did not come in time"));
  std::future<Met> one = MeetLater(Rank(1, 3));
  EXPECT_THAT(zero.get().status.error_message(),
              HasSubstr("rank 2 of 3 gave up before all were here"));
  server_->BeginDrain();
  EXPECT_EQ(ReasonOf(one.get().status), "DRAINING");
}

TEST_F(RendezvousTest, AnotherSizeIsAnErrorForAllThatWait) {
  std::future<Met> zero = MeetLater(Rank(0, 4));
  ASSERT_TRUE(EventuallyInFlight("Rendezvous", 1));
  const Met odd = Meet(Rank(1, 3));
  for (const grpc::Status& status : {odd.status, zero.get().status}) {
    EXPECT_EQ(ReasonOf(status), "RENDEZVOUS_DIFFERS");
    EXPECT_THAT(status.error_message(), HasSubstr("rank 1 speaks of 3 ranks, rank 0 of 4"));
  }
}

TEST_F(RendezvousTest, RanksThatWouldRunSomethingElseDoNotMeet) {
  v1::RendezvousRequest one = Rank(0, 2), other = Rank(1, 2);
  one.set_agrees("plan a");
  other.set_agrees("plan b");
  std::future<Met> zero = MeetLater(one);
  ASSERT_TRUE(EventuallyInFlight("Rendezvous", 1));
  EXPECT_EQ(ReasonOf(Meet(other).status), "RENDEZVOUS_DIFFERS");
  EXPECT_THAT(zero.get().status.error_message(), HasSubstr("ranks 0 and 1 do not agree"));
}

TEST_F(RendezvousTest, ARankThatCallsAgainTakesItsOwnPlace) {
  v1::RendezvousRequest again = Rank(0, 2);
  std::future<Met> first = MeetLater(again);
  ASSERT_TRUE(EventuallyInFlight("Rendezvous", 1));
  again.set_endpoint("unix:/tmp/other");
  std::future<Met> second = MeetLater(again);
  EXPECT_EQ(first.get().status.error_code(), grpc::StatusCode::CANCELLED);
  const Met met = Meet(Rank(1, 2));
  ASSERT_TRUE(met.status.ok());
  EXPECT_EQ(met.response.endpoints(0), "unix:/tmp/other");
  EXPECT_TRUE(second.get().status.ok());
}

TEST_F(RendezvousTest, ARankWhoseCallerWentAwayIsNotWaitedFor) {
  {
    grpc::ClientContext context;
    v1::RendezvousResponse response;
    std::future<grpc::Status> gone = std::async(
        std::launch::async, [&] { return agents_->Rendezvous(&context, Rank(0, 2), &response); });
    ASSERT_TRUE(EventuallyInFlight("Rendezvous", 1));
    context.TryCancel();
    gone.get();
  }
  ASSERT_TRUE(EventuallyInFlight("Rendezvous", 0));
  EXPECT_EQ(ReasonOf(Meet(Rank(1, 2), milliseconds(400)).status), "RANKS_MISSING");
}

TEST_F(RendezvousTest, WatchersHearWhoEndedAnEpochAndWhy) {
  const uint64_t epoch = MeetAll(2);
  auto watch = std::async(std::launch::async, [&] { return Watch(epoch, milliseconds(60'000)); });
  ASSERT_TRUE(EventuallyInFlight("WatchEpoch", 1));
  EXPECT_TRUE(End(epoch, 1, "rank 0 closed the connection").ok());
  const auto [status, fate] = watch.get();
  EXPECT_TRUE(status.ok() && fate.over());
  EXPECT_EQ(fate.why(), "rank 1: rank 0 closed the connection");
  // Whoever asks later hears the same, and the first reason stays.
  EXPECT_TRUE(End(epoch, 0, "something else").ok());
  EXPECT_EQ(Watch(epoch, milliseconds(60'000)).second.why(), fate.why());
}

TEST_F(RendezvousTest, ANewRendezvousEndsTheEpoch) {
  const uint64_t epoch = MeetAll(2);
  std::future<Met> back = MeetLater(Rank(1, 2));
  EXPECT_THAT(Watch(epoch, milliseconds(60'000)).second.why(),
              HasSubstr("rank 1 came to a new rendezvous"));
  const Met zero = Meet(Rank(0, 2));
  EXPECT_EQ(zero.response.epoch(), back.get().response.epoch());
  EXPECT_THAT(Watch(epoch, milliseconds(60'000)).second.why(), HasSubstr("has begun"));
}

TEST_F(RendezvousTest, AnEpochThatGoesOnIsSaidBeforeTheDeadline) {
  const uint64_t epoch = MeetAll(2);
  const auto [status, fate] = Watch(epoch, milliseconds(400));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(fate.over());
}

TEST_F(RendezvousTest, AnEpochThatNeverWasIsAnError) {
  EXPECT_EQ(ReasonOf(Watch(77, milliseconds(1000)).first), "EPOCH_UNKNOWN");
  EXPECT_EQ(ReasonOf(End(77, 0, "")), "EPOCH_UNKNOWN");
  const uint64_t epoch = MeetAll(1);
  EXPECT_EQ(ReasonOf(Watch(epoch + 1, milliseconds(1000)).first), "EPOCH_UNKNOWN");
  EXPECT_EQ(ReasonOf(End(epoch, 1, "")), "JOB_INVALID");
}

TEST_F(RendezvousTest, EveryFieldIsChecked) {
  const auto reason = [this](const std::function<void(v1::RendezvousRequest&)>& change) {
    v1::RendezvousRequest request = Rank(0, 1);
    change(request);
    return ReasonOf(Meet(request).status);
  };
  EXPECT_EQ(reason([](auto& r) { r.set_group(""); }), "JOB_INVALID");
  EXPECT_EQ(reason([](auto& r) { r.set_group("a\nb"); }), "JOB_INVALID");
  EXPECT_EQ(reason([](auto& r) { r.set_size(0); }), "JOB_INVALID");
  EXPECT_EQ(reason([](auto& r) { r.set_rank(1); }), "JOB_INVALID");
  EXPECT_EQ(reason([](auto& r) { r.set_endpoint(""); }), "JOB_INVALID");
  EXPECT_EQ(reason([](auto& r) { r.set_endpoint(std::string(257, 'x')); }), "JOB_INVALID");
  EXPECT_EQ(reason([](auto& r) { r.set_agrees(std::string(65, 'x')); }), "JOB_INVALID");
  EXPECT_EQ(reason([](auto& r) { r.set_size(16'385); }), "JOB_INVALID");
  EXPECT_EQ(reason([](auto& r) { r.set_size(1); }), "");
}

TEST_F(RendezvousTest, AServerThatShutsDownLetsEverybodyGo) {
  const uint64_t epoch = MeetAll(1);
  auto watch = std::async(std::launch::async, [&] { return Watch(epoch, milliseconds(60'000)); });
  v1::RendezvousRequest other = Rank(0, 2);
  other.set_group("another");
  std::future<Met> waits = MeetLater(other);
  ASSERT_TRUE(EventuallyInFlight("WatchEpoch", 1) && EventuallyInFlight("Rendezvous", 1));
  server_->BeginDrain();
  EXPECT_EQ(ReasonOf(watch.get().first), "DRAINING");
  EXPECT_EQ(ReasonOf(waits.get().status), "DRAINING");
}

// Three groups have places.
class RendezvousPlacesTest : public ::testing::Test {
 protected:
  explicit RendezvousPlacesTest(RendezvousLimits limits = {.max_groups = 3}) : limits_(limits) {}

  // What a rank that is alone in its group was told; "" while it waits.
  const std::string& Wait(const std::string& tenant, const std::string& group, uint32_t size = 2) {
    std::string& told = told_[tenant + "/" + group];
    told.clear();
    rendezvous_.Join({.tenant = tenant,
                      .group = group,
                      .rank = 0,
                      .size = size,
                      .endpoint = "here",
                      .agrees = "",
                      .share = {tenant, "host"}},
                     Later(), [&, key = tenant + "/" + group](const auto& met) {
                       told = Told(met.status(), "met");
                       if (met.ok()) epochs_[key] = (*met)->epoch;
                     });
    return told;
  }
  const std::string& Watch(const std::string& tenant, const std::string& group,
                           const std::string& watcher = "") {
    std::string& told = heard_[tenant + "/" + group + watcher];
    told.clear();
    rendezvous_.Watch({tenant, group, epochs_[tenant + "/" + group], {tenant, "host"}}, Later(),
                      [&](const auto& fate) { told = Told(fate.status(), "fate"); });
    return told;
  }
  static SteadyTime Later() { return std::chrono::steady_clock::now() + std::chrono::hours(1); }
  static std::string Told(const absl::Status& status, const std::string& otherwise) {
    return status.ok() ? otherwise : ReasonOf(status);
  }

  std::map<std::string, std::string> told_, heard_;
  std::map<std::string, uint64_t> epochs_;
  uint64_t epoch_ = 0;
  int displaced_ = 0;
  const RendezvousLimits limits_;
  Timers timers_;
  bucketd::Rendezvous rendezvous_{timers_, [this] { return ++epoch_; }, limits_,
                                  [this] { ++displaced_; }};
};

// Three calls.
class RendezvousCallsTest : public RendezvousPlacesTest {
 protected:
  RendezvousCallsTest() : RendezvousPlacesTest({.max_calls = 3}) {}
};

TEST_F(RendezvousPlacesTest, ATenantThatHasAllGroupsGivesTheNewestUpToAnotherOne) {
  for (const char* group : {"1", "2", "3"}) EXPECT_THAT(Wait("b", group), IsEmpty());
  EXPECT_EQ(Wait("b", "4"), "OVERLOADED");
  EXPECT_THAT(Wait("a", "1"), IsEmpty());
  EXPECT_EQ(told_["b/3"], "OVERLOADED");
  EXPECT_EQ(displaced_, 1);
  EXPECT_EQ(Wait("b", "3"), "OVERLOADED") << "two against one, and then one against two";
  EXPECT_EQ(Wait("a", "2"), "OVERLOADED");
  for (const char* group : {"a/1", "b/1", "b/2"}) EXPECT_THAT(told_[group], IsEmpty()) << group;
}

TEST_F(RendezvousPlacesTest, OfWhoHasMostTheGroupThatNobodyWaitsForGoesFirst) {
  EXPECT_EQ(Wait("a", "idle", 1), "met");
  Wait("b", "1");
  EXPECT_EQ(Wait("b", "idle", 1), "met");
  EXPECT_THAT(Wait("c", "1"), IsEmpty());
  EXPECT_THAT(told_["b/1"], IsEmpty());
  EXPECT_EQ(displaced_, 0) << "nobody hears of it";
  EXPECT_EQ(Watch("a", "idle"), "") << "it is there still";
  EXPECT_EQ(Watch("b", "idle"), "EPOCH_UNKNOWN");
  EXPECT_EQ(Wait("b", "2"), "OVERLOADED") << "a's is watched";
}

TEST_F(RendezvousPlacesTest, AllRanksWhoseDeadlineHasComeAreToldOfTheSameMissingOne) {
  constexpr uint32_t kRanks = 4096;
  std::vector<std::promise<std::string>> told(kRanks);
  const SteadyTime deadline = std::chrono::steady_clock::now() + milliseconds(200);
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    rendezvous_.Join({.tenant = "a",
                      .group = "1",
                      .rank = rank,
                      .size = kRanks,
                      .endpoint = "h:1",
                      .agrees = ""},
                     deadline, [&told, rank](const auto& met) {
                       told[rank].set_value(std::string(met.status().message()));
                     });
  }
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    ASSERT_EQ(told[rank].get_future().get(), "rank 0 of 4096 did not come in time") << rank;
  }
}

TEST_F(RendezvousPlacesTest, WhoWatchesAGroupThatGaveWayIsToldSo) {
  Wait("b", "1", 1);
  EXPECT_THAT(Watch("b", "1"), IsEmpty());
  Wait("b", "2", 1);
  EXPECT_THAT(Watch("b", "2"), IsEmpty());
  Wait("b", "3");
  EXPECT_THAT(Wait("a", "1"), IsEmpty());
  EXPECT_THAT(heard_["b/2"], IsEmpty());
  EXPECT_EQ(told_["b/3"], "OVERLOADED");
  Wait("c", "1");
  EXPECT_EQ(heard_["b/2"], "OVERLOADED");
  EXPECT_EQ(Watch("b", "2"), "EPOCH_UNKNOWN") << "so it meets anew";
}

TEST_F(RendezvousCallsTest, ATenantWhoseRanksHaveAllPlacesGivesTheNewestUpToAnotherOne) {
  for (const char* group : {"1", "2", "3"}) EXPECT_THAT(Wait("b", group), IsEmpty());
  EXPECT_EQ(Wait("b", "4"), "OVERLOADED");
  EXPECT_THAT(Wait("a", "1"), IsEmpty());
  EXPECT_EQ(told_["b/3"], "OVERLOADED");
  EXPECT_EQ(displaced_, 1);
  EXPECT_EQ(Wait("a", "2", 1), "OVERLOADED") << "two against one, and then one against two";
  for (const char* group : {"a/1", "b/1", "b/2"}) EXPECT_THAT(told_[group], IsEmpty()) << group;
}

// Who else waits for a timer would wait for all of them.
TEST_F(RendezvousPlacesTest, ThousandsAreNotAnsweredOnTheThreadOfTheTimers) {
  constexpr uint32_t kRanks = 1000;
  std::promise<void> begun, goes_on, other;
  const SteadyTime deadline = std::chrono::steady_clock::now() + milliseconds(100);
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    rendezvous_.Join(
        {.tenant = "a", .group = "1", .rank = rank, .size = kRanks, .endpoint = "h", .agrees = ""},
        deadline, [&, rank](const auto&) {
          if (rank != 1) return;
          begun.set_value();
          goes_on.get_future().wait();
        });
  }
  begun.get_future().wait();
  timers_.Schedule(std::chrono::steady_clock::now(), [&] { other.set_value(); });
  EXPECT_EQ(other.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  goes_on.set_value();
}

TEST_F(RendezvousCallsTest, ATenantThatHasAllWatchersGivesTheNewestUpToAnotherOne) {
  Wait("a", "1", 1);
  Wait("b", "1", 1);
  for (const char* watcher : {"x", "y", "z"}) EXPECT_THAT(Watch("b", "1", watcher), IsEmpty());
  EXPECT_EQ(Watch("b", "1", "w"), "OVERLOADED");
  EXPECT_THAT(Watch("a", "1"), IsEmpty());
  EXPECT_EQ(heard_["b/1z"], "OVERLOADED");
  EXPECT_THAT(heard_["b/1y"], IsEmpty());
  EXPECT_EQ(displaced_, 1);
}

}  // namespace
}  // namespace bucketd
