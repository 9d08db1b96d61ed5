// What jobs agreed on, across generations and restarts.
#include <optional>

#include "absl/strings/str_replace.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "prometheus/registry.h"

#include "server/jobs/pin_index.h"
#include "server/store/sqlite_store.h"
#include "tests/server/agreement_fixture.h"
#include "tests/server/full_disk.h"

namespace bucketd {
namespace {

// ---- pins

// A planner whose plans say which version made them.
PlanFunction Versioned(std::string version) {
  return [version](const Graph& graph, const PlanRequest& request) -> absl::StatusOr<std::string> {
    absl::StatusOr<std::string> plan = ComputePlan(graph, request);
    // An unknown field at the end: still a Plan.
    if (plan.ok())
      *plan += absl::StrCat("\xba\x7d", std::string(1, static_cast<char>(version.size())), version);
    return plan;
  };
}

CostProfile With(double gamma_us) {
  CostProfile profile = BuiltInProfiles()[0];
  profile.gamma_us = gamma_us;
  return profile;
}

class PinTest : public AgreementTest {
 protected:
  void SetUp() override {
    AgreementTest::SetUp();
    options_.store_dir = absl::StrCat(folder_, "/store");
  }
  std::string Agree(const JobSpec& spec, v1::PlanSource* source = nullptr) {
    Calls calls = AllRanks(ForwardGraph(), spec);
    return PlanOfAll(calls, source);
  }
};

// Another server on the store's folder, and who asks it.
class SecondServer {
 public:
  SecondServer(ServerOptions options, const std::string& folder) {
    options.listen = absl::StrCat("unix:", folder, "/second");
    server_ = *Server::Start(options);
    stub_ = v1::Planner::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  std::future<Reply> Ask(const JobSpec& spec, uint32_t rank, std::chrono::seconds deadline) {
    v1::GetPlanRequest request = JobRequest(ForwardGraph(), spec, {rank});
    *request.mutable_graph() = InlineRequestFor(ForwardGraph()).graph();
    return std::async(std::launch::async, [this, request, deadline] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + deadline);
      Reply reply;
      reply.status = stub_->GetPlan(&context, request, &reply.response);
      return reply;
    });
  }
  const prometheus::Registry& registry() const { return server_->registry(); }

 private:
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Planner::Stub> stub_;
};

TEST_F(PinTest, TheNextGenerationGetsThePinnedBytesAfterARestartAndAnUpgrade) {
  plan_function_ = Versioned("one");
  StartServer();
  const std::string plan = Agree({.generation = 1});
  plan_function_ = Versioned("two");
  Restart();
  EXPECT_EQ(Metric("bucketd_pins"), 1);
  v1::PlanSource source{};
  EXPECT_EQ(Agree({.generation = 2}, &source), plan);
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 0);
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "pinned"), 4);
  // Unless it asks for a fresh one; that is pinned from then on.
  const std::string fresh = Agree({.generation = 3, .fresh = true}, &source);
  EXPECT_NE(source, v1::PLAN_SOURCE_PINNED);
  Restart();
  EXPECT_EQ(Agree({.generation = 4}, &source), fresh);
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
}

TEST_F(PinTest, AfterARestartOneRankOfTheSameGenerationNeedNotWaitForTheOthers) {
  StartServer();
  const std::string plan = Agree({});
  plan_function_ = Versioned("two");
  Restart();
  const Reply again = GetPlan(JobRequest(ForwardGraph(), {}, {1}), milliseconds(30'000));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.response.plan().plan(), plan);
  const Reply other = GetPlan(JobRequest(ChangedGraph(), {}, {1}), milliseconds(30'000));
  EXPECT_EQ(ReasonOf(other.status), "RANKS_DIFFER");
  const Reply old = GetPlan(JobRequest(ForwardGraph(), {.generation = 0}, {1}));
  EXPECT_EQ(ReasonOf(old.status), "GENERATION_OVER");
}

TEST_F(PinTest, APlanThatIsInMemoryAloneIsKeptWithThePin) {
  StartServer();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).response.has_plan());
  const auto store = SqliteStore::Open({{}, options_.store_dir});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->EvictPlans({}).value_or(-1), 1);
  const std::string plan = Agree({});
  Restart();
  const Reply again = GetPlan(JobRequest(ForwardGraph(), {}, {1}), milliseconds(30'000));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.response.plan().plan(), plan);
  EXPECT_EQ(again.source(), v1::PLAN_SOURCE_PINNED);
}

TEST_F(PinTest, AnotherGraphIsPlannedAnewAndPinnedInItsPlace) {
  StartServer();
  const std::string plan = Agree({.generation = 1});
  Calls calls = AllRanks(ChangedGraph(), {.generation = 2});
  v1::PlanSource source{};
  EXPECT_NE(PlanOfAll(calls, &source), plan);
  EXPECT_NE(source, v1::PLAN_SOURCE_PINNED);
  Restart();
  Calls next = AllRanks(ChangedGraph(), {.generation = 3});
  PlanOfAll(next, &source);
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
  EXPECT_EQ(Metric("bucketd_pins"), 1);
}

TEST_F(PinTest, LatestIsTheSameVersionForAllScopesOfAGeneration) {
  StartServer();
  const auto profile_of = [&](JobSpec spec) {
    spec.cost_profile = "latest";
    Calls calls = AllRanks(ForwardGraph(), spec);
    return ProfileOf(PlanOfAll(calls));
  };
  const std::string first = profile_of({.scope = "0/0/fw"});
  const std::string second = Promote(With(3.5));
  EXPECT_NE(first, second);
  EXPECT_EQ(profile_of({.scope = "0/1/fw"}), first);
  Restart();
  EXPECT_EQ(profile_of({.scope = "0/2/fw"}), first) << "a late recompile, after a restart";
  EXPECT_EQ(profile_of({.generation = 2, .scope = "0/0/fw"}), first) << "pinned";
  EXPECT_EQ(profile_of({.generation = 2, .scope = "0/3/fw"}), second);
  EXPECT_EQ(profile_of({.generation = 3, .scope = "0/0/fw", .fresh = true}), second);
}

TEST_F(PinTest, AVersionThatIsLostIsAnErrorOfTheScopeAndNoOtherTakesItsPlace) {
  StartServer();
  const JobSpec fw{.size = 2, .cost_profile = "latest"};
  const std::string lost = Promote(With(3.5));
  Calls calls = AllRanks(ForwardGraph(), fw);
  const std::string plan = PlanOfAll(calls);
  EXPECT_EQ(ProfileOf(plan), lost);
  const std::string now = Promote(With(4.5));
  StopServer();
  {
    const auto store = SqliteStore::Open({{}, options_.store_dir});
    ASSERT_TRUE(store.ok()) << store.status();
    const std::string key =
        absl::StrCat("version/", absl::StrReplaceAll(lost, {{"@", "/000000000"}}));
    ASSERT_TRUE((*store)->GetRecord(Shelf::kProfiles, key)->has_value());
    ASSERT_TRUE((*store)->EraseRecord(Shelf::kProfiles, key).ok());
  }
  StartServer();
  // What is pinned needs no profile.
  Calls pinned = AllRanks(ForwardGraph(), fw);
  EXPECT_EQ(PlanOfAll(pinned), plan);
  JobSpec bw = fw;
  bw.scope = "0/0/bw";
  Calls others = AllRanks(ForwardGraph(), bw);
  const grpc::Status error = ErrorOfAll(others);
  EXPECT_EQ(ReasonOf(error), "PROFILE_UNREADABLE");
  for (const std::string& part :
       {std::string("job \"train\""), std::string("generation 1"), std::string("\"latest\""), lost,
        std::string("begin a new one")}) {
    EXPECT_TRUE(StrContains(error.error_message(), part)) << error.error_message();
  }
  // That is not forgotten because somebody else had a plan meanwhile.
  Restart();
  Calls still = AllRanks(ForwardGraph(), bw);
  EXPECT_EQ(ErrorOfAll(still).error_message(), error.error_message());
  bw.generation = 2;
  Calls next = AllRanks(ForwardGraph(), bw);
  EXPECT_EQ(ProfileOf(PlanOfAll(next)), now);
}

TEST_F(PinTest, OfTwoServersOnOneFolderTheFirstPinHoldsForAllRanks) {
  StartServer();
  SecondServer second(options_, folder_);
  const auto call_second = [&](uint32_t rank) {
    return second.Ask({.size = 2, .cost_profile = "latest"}, rank, std::chrono::minutes(1));
  };
  // The second one has not heard of what is promoted at the first.
  const std::string now = Promote(With(3.5));
  Calls late;
  late.push_back(call_second(0));
  ASSERT_TRUE(Eventually([&] {  // its plan is here, made with the older version
    const auto store = SqliteStore::Open({{.read_only = true}, options_.store_dir});
    return store.ok() && (*store)->Stats()->plans == 1;
  }));
  Calls first = AllRanks(ForwardGraph(), {.size = 2, .cost_profile = "latest"});
  const std::string plan = PlanOfAll(first);
  EXPECT_EQ(ProfileOf(plan), now);
  late.push_back(call_second(1));
  EXPECT_EQ(PlanOfAll(late), plan) << "though the second server had another one";
  Calls again = AllRanks(ForwardGraph(), {.size = 2, .cost_profile = "latest"});
  EXPECT_EQ(PlanOfAll(again), plan);
}

TEST_F(PinTest, ARankAloneAtAnotherServerGetsWhatTheOthersAgreedOnWhileItWaited) {
  StartServer();
  SecondServer second(options_, folder_);
  const auto waits = [&] {
    for (const auto& family : second.registry().Collect()) {
      if (family.name == "bucketd_agreement_waiting_ranks")
        return family.metric[0].gauge.value == 1;
    }
    return false;
  };
  std::string plan;
  Reply reply;
  for (const int patience : {2, 8, 30}) {  // more on a machine so busy that the others were late
    const JobSpec spec{.scope = absl::StrCat("0/", patience, "/fw"), .size = 2};
    std::future<Reply> alone = second.Ask(spec, 0, std::chrono::seconds(patience));
    ASSERT_TRUE(Eventually(waits) || patience < 30);
    plan = Agree(spec);
    reply = alone.get();
    if (reply.status.ok()) break;
  }
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.response.plan().plan(), plan);
}

TEST_F(PinTest, WhereTheDiskTakesNoMoreAPlanIsAgreedOnWithoutAPinAndThatIsCounted) {
  StartServer();
  const std::string plan = Agree({.scope = "0/0/fw"});
  auto full = std::make_optional<FullDisk>();
  const std::string unpinned = Agree({.generation = 2, .scope = "0/1/fw"});
  v1::PlanSource source{};
  const std::string pinned = Agree({.generation = 2, .scope = "0/0/fw"}, &source);
  const Reply again =
      GetPlan(JobRequest(ForwardGraph(), {.generation = 2, .scope = "0/1/fw"}, {1}));
  full.reset();
  EXPECT_EQ(unpinned, plan);
  EXPECT_EQ(pinned, plan);
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED) << "reading goes on";
  EXPECT_EQ(again.response.plan().plan(), plan);
  EXPECT_EQ(Metric("bucketd_agreements_unpinned_total", "reason", "store"), 2);
  EXPECT_EQ(Metric("bucketd_agreements_unpinned_total", "reason", "quota"), 0);
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_pins") == 2; }))
      << "once there is room again";
  Restart();
  const Reply late = GetPlan(JobRequest(ForwardGraph(), {.generation = 2, .scope = "0/1/fw"}, {1}));
  EXPECT_EQ(late.source(), v1::PLAN_SOURCE_PINNED) << "nobody else asks again";
  EXPECT_EQ(late.response.plan().plan(), plan);
  EXPECT_EQ(Agree({.generation = 3, .scope = "0/1/fw"}), plan);
  EXPECT_EQ(Metric("bucketd_pins"), 2);
}

TEST_F(PinTest, AReleasedJobHasNoPins) {
  plan_function_ = Versioned("one");
  StartServer();
  Agree({.scope = "0/0/fw"});
  Agree({.scope = "0/0/bw"});
  EXPECT_EQ(Metric("bucketd_pins"), 2);
  grpc::ClientContext context;
  v1::ReleaseJobRequest request;
  v1::ReleaseJobResponse response;
  request.set_job_id("train");
  ASSERT_TRUE(stub_->ReleaseJob(&context, request, &response).ok());
  EXPECT_EQ(response.released(), 2);
  EXPECT_EQ(Metric("bucketd_pins"), 0);
  EXPECT_EQ(Metric("bucketd_agreement_jobs"), 0);
  v1::PlanSource source{};
  Agree({.generation = 0}, &source);  // the name is free again
  EXPECT_NE(source, v1::PLAN_SOURCE_PINNED);
}

TEST_F(PinTest, PinsExpireUnlessTheyAreUsed) {
  options_.pin_ttl = milliseconds(40);
  StartServer();
  Agree({});
  EXPECT_TRUE(Eventually([&] { return Metric("bucketd_pins") == 0; }));
  Restart();
  EXPECT_EQ(Metric("bucketd_pins"), 0);
}

TEST_F(PinTest, BeyondItsQuotaATenantGetsPlansWithoutPins) {
  options_.max_pins_per_tenant = 1;
  StartServer();
  const std::string first = Agree({.scope = "0/0/fw"});
  const std::string second = Agree({.scope = "0/1/fw"});
  EXPECT_EQ(first, second);
  EXPECT_EQ(Metric("bucketd_pins"), 1);
  EXPECT_EQ(Metric("bucketd_agreements_unpinned_total", "reason", "quota"), 1);
  EXPECT_EQ(GetPlan(JobRequest(ForwardGraph(), {.scope = "0/1/fw"}, {1})).response.plan().plan(),
            second)
      << "agreed all the same, as long as the server lives";
  // A pin that is there may be renewed.
  Agree({.generation = 2, .scope = "0/0/fw"});
  EXPECT_EQ(Metric("bucketd_agreements_unpinned_total", "reason", "quota"), 1);
}

TEST(PinIndexTest, TheJobOfFewestRanksGoesFirstAndOfEqualOnesTheOneUnusedForLongest) {
  PinIndex index([](absl::string_view) { return 3; });
  const WallTime now{milliseconds(1'000'000)};
  const auto later = [&](int ms) { return now + milliseconds(ms); };
  index.Put(PinKey("t", "wide", "fw"), later(1), 8);
  index.Put(JobKey("t", "wide"), later(1), 8);
  index.Put(PinKey("t", "old", "fw"), later(2), 2);
  index.Put(PinKey("t", "new", "fw"), later(3), 2);
  EXPECT_EQ(index.pins(), 3);
  const std::string key = PinKey("t", "one more", "fw");
  EXPECT_FALSE(index.HasRoom(key));
  EXPECT_TRUE(index.HasRoom(PinKey("t", "old", "fw"))) << "it is there";
  EXPECT_TRUE(index.HasRoom(PinKey("u", "one more", "fw"))) << "another tenant";
  EXPECT_EQ(index.Weakest(key, 2, later(10)), JobPrefix("t", "old"));
  EXPECT_EQ(index.Weakest(key, 1, later(10)), std::nullopt) << "all have more ranks";
  EXPECT_EQ(index.Weakest(PinKey("t", "old", "bw"), 2, later(10)), JobPrefix("t", "new"))
      << "not itself";
  index.Put(PinKey("t", "old", "fw"), later(4), 2);  // used again
  EXPECT_EQ(index.Weakest(key, 2, later(10)), JobPrefix("t", "new"));
  EXPECT_EQ(index.Weakest(key, 9, later(2)), JobPrefix("t", "wide")) << "the others are kept";
  index.Erase(PinKey("t", "new", "fw"));
  EXPECT_TRUE(index.HasRoom(key));
  EXPECT_EQ(index.Jobs("t"), (std::vector<std::string>{"old", "wide"}));
  // Jobs count too: their records stay when nothing was agreed on.
  index.Put(JobKey("t", "third"), later(5), 1);
  EXPECT_FALSE(index.HasRoom(JobKey("t", "fourth")));
  EXPECT_EQ(index.Weakest(JobKey("t", "fourth"), 1, later(10)), JobPrefix("t", "third"));
}

TEST_F(PinTest, JobsOfOneRankMakeRoomForOthersAndNotTheOtherWayRound) {
  options_.max_pins_per_tenant = 3;
  StartServer();
  Agree({.id = "real", .size = 2});
  for (int i = 0; i < 10; ++i) Agree({.id = absl::StrCat("junk-", i), .size = 1});
  EXPECT_EQ(Metric("bucketd_pins"), 3);
  EXPECT_EQ(Metric("bucketd_pinned_jobs_displaced_total"), 8);
  Agree({.id = "larger", .size = 3});
  Agree({.id = "large", .size = 2});
  EXPECT_EQ(Metric("bucketd_agreements_unpinned_total", "reason", "quota"), 0);
  Agree({.id = "junk", .size = 1});
  EXPECT_EQ(Metric("bucketd_agreements_unpinned_total", "reason", "quota"), 1);
  Restart();
  v1::PlanSource source{};
  for (const auto& [id, size] : {std::pair("real", 2U), {"larger", 3U}, {"large", 2U}}) {
    Agree({.id = id, .generation = 2, .size = size}, &source);
    EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED) << id;
  }
}

TEST_F(PinTest, PinsOutliveTheMemoryOfTheirJob) {
  options_.job_idle = milliseconds(20);
  options_.plan_cache_bytes = 0;
  StartServer();
  const std::string plan = Agree({});
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_agreement_jobs") == 0; }));
  const Reply again = GetPlan(JobRequest(ForwardGraph(), {}, {1}));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.response.plan().plan(), plan);
}

TEST_F(AgreementTest, WithoutAFolderPinsHoldAsLongAsTheServer) {
  StartServer();
  v1::PlanSource source{};
  for (const uint64_t generation : {1U, 2U}) {
    Calls calls = AllRanks(ForwardGraph(), {.generation = generation});
    ASSERT_NE(PlanOfAll(calls, &source), "");
  }
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
}

}  // namespace
}  // namespace bucketd
