// A server with a store: plans outlive it, whatever way it ends.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

#include "server/store/bundle.h"
#include "server/store/sqlite_store.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

class StoreServerTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    options_.store_dir = absl::StrCat(folder_, "/store");
  }
  void FillStore() {
    const auto store = SqliteStore::Open({{}, options_.store_dir});
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = 0; i < 40; ++i) {
      const std::string filler(3000, static_cast<char>('a' + i % 26));
      ASSERT_TRUE((*store)->PutPlan(absl::StrCat("filler ", i), "", filler).ok());
    }
  }
  double Reads(const std::string& result) {
    // Of plans; of records nothing else is counted in these tests but misses.
    return Metric("bucketd_store_reads_total", "result", result);
  }
  double Computed() { return Metric("bucketd_plan_computations_total", "result", "ok"); }
};

TEST_F(StoreServerTest, APlanSurvivesARestartAndNeedsNoGraph) {
  StartServer();
  const Reply computed = GetPlan(InlineRequestFor(ForwardGraph()));
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(Metric("bucketd_store_writes_total", "result", "no_space"), 0);
  Restart();
  EXPECT_TRUE(Eventually([&] { return Metric("bucketd_store_plans") == 1; }));
  EXPECT_GT(Metric("bucketd_store_bytes"), 1000);
  const double at_start = Reads("hit");
  const Reply stored = GetPlan(RequestFor(ForwardGraph()));
  ASSERT_TRUE(stored.status.ok()) << stored.status.error_message();
  EXPECT_EQ(stored.source(), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(stored.response.plan().plan(), computed.response.plan().plan());
  EXPECT_EQ(stored.response.plan().plan_sha256(), computed.response.plan().plan_sha256());
  EXPECT_EQ(Reads("hit"), at_start + 1);
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "store_hit"), 1);
  EXPECT_EQ(Computed(), 0);
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(Reads("hit"), at_start + 1) << "the second time it is in memory";
}

TEST_F(StoreServerTest, WithoutAStoreAPlanIsGone) {
  options_.store_dir = "";
  StartServer();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  Restart();
  EXPECT_TRUE(GetPlan(RequestFor(ForwardGraph())).asked_to_upload());
}

TEST_F(StoreServerTest, WhatIsNotStoredIsAskedForAsEver) {
  StartServer();
  EXPECT_TRUE(GetPlan(RequestFor(ForwardGraph())).asked_to_upload());
  v1::GetPlanRequest cached = RequestFor(BackwardGraph());
  cached.set_cached_only(true);
  EXPECT_EQ(ReasonOf(GetPlan(cached).status), "PLAN_NOT_CACHED");
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(GetPlan(InlineRequestFor(BackwardGraph())).source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(GetPlan(cached).source(), v1::PLAN_SOURCE_HIT);
  Restart();
  EXPECT_EQ(GetPlan(cached).source(), v1::PLAN_SOURCE_HIT) << "from the store, not from memory";
}

TEST_F(StoreServerTest, ADamagedPlanIsComputedAgainAndCounted) {
  StartServer();
  const Reply computed = GetPlan(InlineRequestFor(ForwardGraph()));
  StopServer();
  FillStore();  // so that the damaged page is one of many
  const std::string database = options_.store_dir + "/store.db";
  std::stringstream read;
  read << std::ifstream(database, std::ios::binary).rdbuf();
  std::string bytes = read.str();
  const std::string& plan = computed.response.plan().plan();
  const size_t at = bytes.find(plan.substr(plan.size() - 200));
  ASSERT_NE(at, std::string::npos) << "the end of a plan stands in one page";
  bytes[at] ^= 1;
  std::ofstream(database, std::ios::binary) << bytes;
  StartServer();
  EXPECT_TRUE(GetPlan(RequestFor(ForwardGraph())).asked_to_upload());
  EXPECT_EQ(Reads("damaged"), 1);
  EXPECT_EQ(Metric("bucketd_store_damage_total"), 1);
  const Reply again = GetPlan(InlineRequestFor(ForwardGraph()));
  EXPECT_EQ(again.source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(again.response.plan().plan(), plan);
  Restart();
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_HIT);
}

TEST_F(StoreServerTest, APlanOfAnotherGraphIsNeverGivenOut) {
  StartServer();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  const Reply other = GetPlan(InlineRequestFor(BackwardGraph()));
  StopServer();
  {
    const auto store = SqliteStore::Open({{}, options_.store_dir});
    ASSERT_TRUE(store.ok()) << store.status();
    PlanSelection forward;
    forward.graph_digest = ToHex(ForwardGraph().digest);
    const auto plans = (*store)->ListPlans(forward, 9);
    ASSERT_EQ(plans->size(), 1U);
    ASSERT_TRUE((*store)->PutPlan((*plans)[0].key, "", other.response.plan().plan()).ok());
  }
  StartServer();
  EXPECT_TRUE(GetPlan(RequestFor(ForwardGraph())).asked_to_upload());
  EXPECT_EQ(Metric("bucketd_store_damage_total"), 1);
  EXPECT_EQ(GetPlan(RequestFor(BackwardGraph())).source(), v1::PLAN_SOURCE_HIT);
}

TEST_F(StoreServerTest, CallersGetTheirPlanWhenTheStoreTakesNoMore) {
  options_.store_bytes = 100;
  StartServer();
  EXPECT_EQ(GetPlan(InlineRequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(Metric("bucketd_store_writes_total", "result", "no_space"), 1);
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_HIT);
}

TEST_F(StoreServerTest, AStoreThatCannotBeOpenedIsNamedAndRefused) {
  std::ofstream(options_.store_dir) << "a file";
  const auto server = Server::Start(options_);
  ASSERT_FALSE(server.ok());
  EXPECT_TRUE(absl::StartsWith(server.status().message(), "--store: ")) << server.status();
  EXPECT_TRUE(absl::StrContains(server.status().message(), "is no folder")) << server.status();
}

TEST_F(StoreServerTest, ManyCallersOfOneStoredPlanReadItOnce) {
  StartServer();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  Restart();
  const double at_start = Reads("hit");
  std::vector<std::jthread> callers;
  std::atomic<int> hits{0};
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&] {
      const auto stub = NewStub();
      grpc::ClientContext context;
      v1::GetPlanResponse response;
      const grpc::Status status = stub->GetPlan(&context, RequestFor(ForwardGraph()), &response);
      hits += status.ok() && response.plan().source() == v1::PLAN_SOURCE_HIT ? 1 : 0;
    });
  }
  callers.clear();
  EXPECT_EQ(hits, 16);
  EXPECT_EQ(Reads("hit"), at_start + 1);
}

TEST_F(StoreServerTest, APlanThatWasAnsweredSurvivesKill9) {
  const std::string program = absl::StrCat(getenv("BUCKETD_BIN"), "/bucketd");
  int output[2];
  ASSERT_EQ(pipe2(output, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(output[1], STDOUT_FILENO);
    execl(program.c_str(), program.c_str(), "--listen", options_.listen.c_str(), "--http", "",
          "--store-dir", options_.store_dir.c_str(), nullptr);
    _exit(127);
  }
  close(output[1]);
  char byte = 0;
  while (read(output[0], &byte, 1) == 1 && byte != '\n') continue;  // it serves
  close(output[0]);
  Reply computed;
  {
    const auto stub = v1::Planner::NewStub(
        grpc::CreateChannel(options_.listen, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    computed.status = stub->GetPlan(&context, InlineRequestFor(ForwardGraph()), &computed.response);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  StartServer();
  const Reply stored = GetPlan(RequestFor(ForwardGraph()));
  ASSERT_TRUE(stored.status.ok()) << stored.status.error_message();
  EXPECT_EQ(stored.source(), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(stored.response.plan().plan(), computed.response.plan().plan());
}

// ---- bucketctl store

Ran RunCtl(const std::string& arguments) { return RunProgram("bucketctl store " + arguments); }

TEST_F(StoreServerTest, PlansTravelInABundleFromOneServerToAnother) {
  StartServer();
  const Reply computed = GetPlan(InlineRequestFor(ForwardGraph()));
  ASSERT_TRUE(GetPlan(InlineRequestFor(BackwardGraph())).status.ok());
  const std::string bundle = folder_ + "/plans.bundle";
  // From under a running server.
  Ran ran = RunCtl(absl::StrCat("verify ", options_.store_dir));
  EXPECT_EQ(ran.exit, 0) << ran.output;
  EXPECT_TRUE(absl::StrContains(ran.output, "the store is whole")) << ran.output;
  ran = RunCtl(absl::StrCat("stats --json ", options_.store_dir));
  EXPECT_EQ(ran.exit, 0) << ran.output;
  EXPECT_TRUE(absl::StartsWith(ran.output, "{\"plans\": 2,")) << ran.output;
  ran = RunCtl(absl::StrCat("export --json ", options_.store_dir, " ", bundle));
  EXPECT_EQ(ran.exit, 0) << ran.output;
  EXPECT_TRUE(absl::StartsWith(ran.output, "{\"exported\": 2,")) << ran.output;
  const std::string other = folder_ + "/other";
  ran = RunCtl(absl::StrCat("import --json ", bundle, " ", other));
  EXPECT_EQ(ran.exit, 0) << ran.output;
  EXPECT_EQ(ran.output,
            "{\"imported\": 2,\n \"already_there\": 0,\n \"replaced\": 0,\n "
            "\"differing\": 0}\n");
  ran = RunCtl(absl::StrCat("import --json ", bundle, " ", other));
  EXPECT_EQ(ran.output,
            "{\"imported\": 0,\n \"already_there\": 2,\n \"replaced\": 0,\n "
            "\"differing\": 0}\n");
  options_.store_dir = other;
  Restart();
  const Reply stored = GetPlan(RequestFor(ForwardGraph()));
  ASSERT_TRUE(stored.status.ok()) << stored.status.error_message();
  EXPECT_EQ(stored.source(), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(stored.response.plan().plan(), computed.response.plan().plan());
}

TEST_F(StoreServerTest, CtlNamesWhatIsDamagedAndRefusesWhatItCannotTrust) {
  StartServer();
  const Reply computed = GetPlan(InlineRequestFor(ForwardGraph()));
  const Reply other = GetPlan(InlineRequestFor(BackwardGraph()));
  StopServer();
  const std::string bundle = folder_ + "/plans.bundle";
  std::string key;
  {
    const auto store = SqliteStore::Open({{}, options_.store_dir});
    ASSERT_TRUE(store.ok()) << store.status();
    PlanSelection forward;
    forward.graph_digest = ToHex(ForwardGraph().digest);
    key = (*store)->ListPlans(forward, 1)->at(0).key;
    const auto writer = BundleWriter::Open(bundle);
    ASSERT_TRUE(writer.ok());
    (*writer)->Add({BundleKind::kPlan, Shelf{}, "", key, other.response.plan().plan(), {}});
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  Ran ran = RunCtl(absl::StrCat("import ", bundle, " ", folder_, "/poisoned"));
  EXPECT_EQ(ran.exit, 1);
  EXPECT_TRUE(absl::StrContains(ran.output, "entry 0: its key names another graph")) << ran.output;
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/poisoned")) << "all or nothing";

  const std::string database = options_.store_dir + "/store.db";
  std::stringstream read;
  read << std::ifstream(database, std::ios::binary).rdbuf();
  std::string bytes = read.str();
  const std::string& plan = computed.response.plan().plan();
  bytes[bytes.find(plan.substr(plan.size() - 200))] ^= 1;
  std::ofstream(database, std::ios::binary) << bytes;
  ran = RunCtl(absl::StrCat("verify ", options_.store_dir));
  EXPECT_EQ(ran.exit, 1);
  EXPECT_TRUE(absl::StrContains(ran.output, ToHex(Sha256(key)))) << ran.output;
  EXPECT_TRUE(absl::StrContains(ran.output, ToHex(ForwardGraph().digest))) << ran.output;
  ran = RunCtl(absl::StrCat("export ", options_.store_dir, " ", bundle));
  EXPECT_EQ(ran.exit, 1) << "something was left out";
  EXPECT_TRUE(absl::StrContains(ran.output, "1 values, ")) << ran.output;
  ran = RunCtl(absl::StrCat("import ", bundle, " ", folder_, "/repaired"));
  EXPECT_EQ(ran.exit, 0) << ran.output;
  ran = RunCtl(absl::StrCat("stats ", folder_, "/nowhere"));
  EXPECT_EQ(ran.exit, 2);
  EXPECT_TRUE(absl::StrContains(ran.output, "no such file")) << ran.output;
}

}  // namespace
}  // namespace bucketd
