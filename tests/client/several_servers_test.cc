// C++ clients that know several servers: whom they ask, and when they go on to the next one.
#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/addresses.h"
#include "client/admin_client.h"
#include "client/agent_client.h"
#include "client/errors.h"
#include "client/planner_client.h"
#include "client/watched_call.h"
#include "gtest/gtest.h"

#include "tests/client/client_queries.h"
#include "tests/client/server_process.h"
#include "tests/temp_folder.h"

namespace bucketd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Two addresses, of servers that share a store; ranks of the job "train" ask the first one first.
class SeveralServersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto order =
        InOrder({{absl::StrCat("unix:", folder_, "/a")}, {absl::StrCat("unix:", folder_, "/b")}},
                "job//train");
    first_ = order[0].target;
    second_ = order[1].target;
    both_ = absl::StrCat(first_, ",", second_);
  }

  ServerProcess& Start(const std::string& address, std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--store-dir", absl::StrCat(folder_, "/store")});
    servers_[address] = std::make_unique<ServerProcess>(address, flags);
    return *servers_[address];
  }
  static std::unique_ptr<PlannerClient> NewClient(const std::string& address) {
    ClientOptions options;
    options.own_connection = true;
    options.connect_timeout = seconds(20);
    options.log = [](absl::string_view) {};
    return std::make_unique<PlannerClient>(address, options);
  }
  static PlanQuery Rank(uint32_t rank, uint32_t size) {
    PlanQuery query = QueryFor("llama3_debug_fsdp8.fw.json.gz");
    query.job = Job{.id = "train", .scope = "0/fw", .ranks = {rank}, .size = size};
    return query;
  }

  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
  std::string first_, second_, both_;
  std::map<std::string, std::unique_ptr<ServerProcess>> servers_;
};

TEST_F(SeveralServersTest, RanksOfAJobMeetHoweverTheirListsAreSorted) {
  Start(first_);
  Start(second_);
  auto other =
      std::async(std::launch::async, [&] { return NewClient(both_)->GetPlan(Rank(1, 2)); });
  const auto one = NewClient(absl::StrCat(second_, ",", first_))->GetPlan(Rank(0, 2));
  const auto two = other.get();
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(one->sha256, two->sha256);
}

TEST_F(SeveralServersTest, AServerThatIsGoneIsLeftAtOnceAndAskedAgainLater) {
  Start(first_);
  Start(second_);
  const auto client = NewClient(both_);
  ASSERT_TRUE(client->GetPlan(Rank(0, 1)).ok());
  servers_.erase(first_);
  const auto begin = steady_clock::now();
  const auto moved = client->GetPlan(Rank(0, 1));
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->source, v1::PLAN_SOURCE_PINNED);
  EXPECT_LT(steady_clock::now() - begin, seconds(3));
  EXPECT_EQ(client->counters().moves, 1);
  EXPECT_EQ(client->counters().breaker_opens, 0);
  Start(first_);
  servers_.erase(second_);
  const auto back = client->GetPlan(Rank(0, 1));
  EXPECT_TRUE(back.ok()) << back.status();
}

TEST_F(SeveralServersTest, AServerThatDrainsIsLeftAtOnce) {
  ServerProcess& first = Start(first_, {"--lame-duck-ms", "60000", "--drain-seconds", "60"});
  Start(second_);
  const auto client = NewClient(both_);
  ASSERT_TRUE(client->GetPlan(Rank(0, 1)).ok());
  first.Terminate();
  AdminClient admin(first_);
  while (admin.GetStatus()->state() != "draining") std::this_thread::yield();
  const auto begin = steady_clock::now();
  EXPECT_TRUE(client->GetPlan(Rank(0, 1)).ok());
  EXPECT_TRUE(NewClient(both_)->GetPlan(Rank(0, 1)).ok());
  EXPECT_LT(steady_clock::now() - begin, seconds(3));
  EXPECT_EQ(client->counters().moves, 1);
  EXPECT_EQ(client->counters().waits, 0);
}

TEST_F(SeveralServersTest, ARankThatWaitsElsewhereGoesBackToWhereTheOthersCome) {
  Start(second_);
  const auto client = NewClient(both_);
  auto waiting = std::async(std::launch::async, [&] { return client->GetPlan(Rank(0, 2)); });
  AdminClient admin(second_);
  while (admin.GetStatus()->jobs_waiting() == 0) std::this_thread::yield();
  Start(first_);
  const auto other = NewClient(first_)->GetPlan(Rank(1, 2));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(waiting.get()->sha256, other->sha256);
}

TEST_F(SeveralServersTest, NobodyIsAnErrorThatNamesThemAll) {
  ClientOptions options;
  options.connect_timeout = milliseconds(500);
  options.log = [](absl::string_view) {};
  PlannerClient client(both_, options);
  for (int i = 0; i < 2; ++i) {
    const auto begin = steady_clock::now();
    const absl::Status error = client.GetPlan(Rank(0, 1)).status();
    EXPECT_EQ(ReasonOf(error), kUnreachable) << error;
    for (const std::string& address : {first_, second_}) {
      EXPECT_TRUE(absl::StrContains(error.message(), address)) << error;
    }
    EXPECT_LT(steady_clock::now() - begin, seconds(3));
  }
  const absl::Status refused = client.GetPlan(Rank(0, 1)).status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "it will be tried again in")) << refused;
  EXPECT_EQ(client.counters().breaker_opens, 1);
}

TEST_F(SeveralServersTest, AnAddressThatIsNoneIsNamedByEveryClient) {
  const std::string wrong = absl::StrCat(first_, ",nowhere");
  v1::WatchEpochRequest epoch;
  for (const absl::Status& error :
       {PlannerClient(wrong).GetPlan(Rank(0, 1)).status(), AdminClient(wrong).GetStatus().status(),
        AgentClient(wrong).WatchEpoch(epoch, seconds(5)).status()}) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StartsWith(error.message(), "\"nowhere\" in ")) << error;
  }
}

TEST_F(SeveralServersTest, AnOperatorAsksTheFirstOfTheListThatAnswers) {
  Start(second_);
  AdminClient admin(both_);
  EXPECT_EQ(admin.GetStatus()->address(), second_);
  Start(first_);
  EXPECT_EQ(AdminClient(both_).GetStatus()->address(), first_);
  EXPECT_EQ(AdminClient(absl::StrCat(second_, ",", first_)).GetStatus()->address(), second_);
}

v1::RendezvousRequest Member(uint32_t rank) {
  v1::RendezvousRequest request;
  request.set_group("dp/0");
  request.set_rank(rank);
  request.set_size(2);
  request.set_endpoint(absl::StrCat("unix:/rank", rank));
  return request;
}

TEST_F(SeveralServersTest, AgentsMeetAtOneServerAndAskThereWhatBecomesOfTheirEpoch) {
  const auto order = InOrder({{first_}, {second_}}, "group//dp/0");
  Start(order[1].target);
  AgentClient one(both_), other(absl::StrCat(second_, ",", first_));
  const auto meet = [](AgentClient& agent, uint32_t rank) {
    return agent.Rendezvous(Member(rank), seconds(60));
  };
  auto waiting = std::async(std::launch::async, [&] { return meet(one, 0); });
  EXPECT_EQ(waiting.wait_for(milliseconds(300)), std::future_status::timeout);
  Start(order[0].target);
  const auto met = meet(other, 1);
  ASSERT_TRUE(met.ok()) << met.status();
  EXPECT_EQ(waiting.get()->epoch(), met->epoch());
  v1::EndEpochRequest end;
  end.set_group("dp/0");
  end.set_epoch(met->epoch());
  end.set_why("enough");
  EXPECT_TRUE(other.EndEpoch(end).ok());
  v1::WatchEpochRequest watch;
  watch.set_group("dp/0");
  watch.set_epoch(met->epoch());
  const auto over = one.WatchEpoch(watch, seconds(10));
  ASSERT_TRUE(over.ok()) << over.status();
  EXPECT_EQ(over->why(), "rank 0: enough");
}

TEST_F(SeveralServersTest, ACallToAServerThatSaysNothingAnyMoreIsCancelled) {
  ServerProcess& server = Start(first_);
  const auto at = std::make_shared<ServerChannel>(ServerAddress{first_}, ChannelOptions{});
  grpc::ClientContext warm;
  ASSERT_TRUE(at->Ping(warm).ok());
  server.Stop();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  const auto begin = steady_clock::now();
  CallWatch watch(context, at, {}, {milliseconds(100), milliseconds(300), 2});
  EXPECT_EQ(at->Ping(context).error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(watch.Elsewhere(), nullptr);
  EXPECT_LT(steady_clock::now() - begin, seconds(30));
}

}  // namespace
}  // namespace bucketd::client
