// What one tenant can find out of another: nothing by any call. A tenant asks the same of a server
// where another one has plans, graphs, jobs and agents, and of one where nobody has anything, and
// gets the same answers, byte for byte.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "proto/cluster.pb.h"
#include "server/store/sqlite_store.h"
#include "tests/server/secured_fixture.h"

namespace bucketd {
namespace {

// What the other tenant has, which no secret keeps.
struct Known {
  std::string key_sha256;
  uint64_t epoch = 0;
};

v1::Job TheJob(uint64_t generation) {
  v1::Job job;
  job.set_id("job");
  job.set_generation(generation);
  job.set_scope("0/fw");
  job.set_size(1);
  job.add_rank(0);
  return job;
}

template <class Response>
std::string Said(const grpc::Status& status, const Response& response) {
  if (!status.ok()) return absl::StrCat(ReasonOf(status), ": ", status.error_message());
  return response.Utf8DebugString();
}

class SecuredProbeTest : public SecuredTest {
 protected:
  void SetUp() override {
    SecuredTest::SetUp();
    Client("p", "URI:spiffe://example.org/prober/x");
    WriteIdentities(
        Entry("URI:spiffe://example.org/prober/*", "prober", "plan report promote admin peer"));
  }

  void StartAnew() {
    server_.reset();
    std::filesystem::remove_all(folder_ + "/store");
    BeAReplica();
    Start();
    const auto channel = As("p");
    planner_ = v1::Planner::NewStub(channel);
    admin_ = v1::Admin::NewStub(channel);
    costs_ = v1::CostProfiles::NewStub(channel);
    agents_ = v1::Agents::NewStub(channel);
  }

  // Team a uses all that there is.
  Known Populate() {
    Known known;
    const auto channel = As("a");
    const auto planner = v1::Planner::NewStub(channel);
    v1::UploadGraphResponse uploaded;
    EXPECT_TRUE(Send(*planner, &uploaded).ok());
    v1::GetPlanRequest request = RequestFor(ForwardGraph());
    v1::GetPlanResponse planned;
    for (const bool in_a_job : {false, true, true}) {
      if (in_a_job) *request.mutable_job() = TheJob(request.has_job() ? 1 : 0);
      const grpc::Status status = planner->GetPlan(Soon().get(), request, &planned);
      EXPECT_TRUE(status.ok() && planned.has_plan()) << status.error_message();
    }
    v1::ListPlansResponse plans;
    EXPECT_TRUE(v1::Admin::NewStub(channel)->ListPlans(Soon().get(), {}, &plans).ok());
    EXPECT_EQ(plans.plans_size(), 1);
    known.key_sha256 = plans.plans(0).key_sha256();
    v1::RendezvousResponse met;
    EXPECT_TRUE(v1::Agents::NewStub(channel)->Rendezvous(Soon().get(), Meeting(), &met).ok());
    known.epoch = met.epoch();
    EXPECT_THAT(Report(channel), ::testing::HasSubstr("accepted: 1"));
    return known;
  }

  static std::string Report(const std::shared_ptr<grpc::Channel>& channel) {
    v1::ReportCostsResponse response;
    const auto context = Soon();
    const auto stub = v1::CostProfiles::NewStub(channel);
    const auto writer = stub->ReportCosts(context.get(), &response);
    v1::ReportCostsRequest message;
    message.mutable_header()->set_profile("h100_nvlink");
    message.mutable_header()->set_reporter("node");
    message.mutable_header()->set_tool("probe 1");
    writer->Write(message);
    v1::CollectiveSample& sample = *message.mutable_batch()->add_samples();
    sample.set_kind(v1::COLLECTIVE_KIND_ALL_GATHER);
    sample.set_group_size(8);
    sample.set_dtype(v1::DTYPE_BF16);
    sample.set_bytes(1 << 20);
    sample.set_picoseconds(50'000'000);
    writer->Write(message);
    writer->WritesDone();
    return Said(writer->Finish(), response);
  }

  grpc::Status Send(v1::Planner::Stub& planner, v1::UploadGraphResponse* response) {
    const auto context = Soon();
    const auto writer = planner.UploadGraph(context.get(), response);
    v1::UploadGraphRequest message;
    *message.mutable_header() = HeaderFor(ForwardGraph());
    writer->Write(message);
    message.set_chunk(Zstd(ForwardGraph().bytes));
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }

  // As it stands in the store.
  uint64_t IncarnationNow() {
    const auto store = SqliteStore::Open({{.read_only = true}, options_.store_dir});
    EXPECT_TRUE(store.ok()) << store.status();
    const auto value =
        (*store)->GetRecord(Shelf::kReplicas, absl::StrCat("replica/", options_.cluster_address));
    v1::ReplicaRecord record;
    EXPECT_TRUE(value.ok() && value->has_value() && record.ParseFromString(**value));
    return record.incarnation();
  }

  static v1::RendezvousRequest Meeting() {
    v1::RendezvousRequest meeting;
    meeting.set_group("dp");
    meeting.set_size(1);
    meeting.set_endpoint("tcp:127.0.0.1:1");
    return meeting;
  }

  template <class Stub, class Request, class Response>
  std::string Ask(const std::unique_ptr<Stub>& stub,
                  grpc::Status (Stub::*call)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, int seconds = 20) {
    Response response;
    const grpc::Status status = (stub.get()->*call)(Soon(seconds).get(), request, &response);
    return Said(status, response);
  }

  // In this order: later ones may change what earlier ones see.
  std::vector<std::pair<std::string, std::string>> AskAll(const Known& known);

  std::unique_ptr<v1::Planner::Stub> planner_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<v1::CostProfiles::Stub> costs_;
  std::unique_ptr<v1::Agents::Stub> agents_;
};

std::vector<std::pair<std::string, std::string>> SecuredProbeTest::AskAll(const Known& known) {
  using P = v1::Planner::Stub;
  using A = v1::Admin::Stub;
  using C = v1::CostProfiles::Stub;
  using G = v1::Agents::Stub;
  std::vector<std::pair<std::string, std::string>> said;
  const auto add = [&](const char* method, const std::string& answer) {
    said.emplace_back(absl::StrCat("bucketd.v1.", method), answer);
  };
  add("Planner/GetCapabilities", Ask(planner_, &P::GetCapabilities, {}));
  v1::QueryUploadRequest query;
  query.set_graph_digest(DigestBytes(ForwardGraph().digest));
  add("Planner/QueryUpload", Ask(planner_, &P::QueryUpload, query));
  v1::GetPlanRequest plan = RequestFor(ForwardGraph());
  plan.set_cached_only(true);
  add("Planner/GetPlan", Ask(planner_, &P::GetPlan, plan));
  v1::ListJobsRequest jobs;
  add("Admin/ListJobs", Ask(admin_, &A::ListJobs, jobs));
  jobs.set_id("job");
  add("Admin/ListJobs", Ask(admin_, &A::ListJobs, jobs));
  plan.set_cached_only(false);
  *plan.mutable_job() = TheJob(0);  // a generation that is over, of the other's job
  add("Planner/GetPlan", Ask(planner_, &P::GetPlan, plan));
  plan.clear_job();
  v1::ReleaseJobRequest release;
  release.set_job_id("job");
  add("Planner/ReleaseJob", Ask(planner_, &P::ReleaseJob, release));

  add("Admin/GetStatus", Ask(admin_, &A::GetStatus, {}));
  v1::SetPlanningRequest off;
  off.set_why("probe");
  add("Admin/SetPlanning", Ask(admin_, &A::SetPlanning, off));
  v1::ListPlansRequest list;
  add("Admin/ListPlans", Ask(admin_, &A::ListPlans, list));
  list.mutable_selection()->set_key_sha256(known.key_sha256);
  add("Admin/ListPlans", Ask(admin_, &A::ListPlans, list));
  v1::EvictPlansRequest evict;
  evict.mutable_selection()->set_key_sha256(known.key_sha256);
  add("Admin/EvictPlans", Ask(admin_, &A::EvictPlans, evict));
  v1::PinJobRequest pin;
  pin.set_job_id("job");
  pin.set_ttl_ms(3'600'000);
  add("Admin/PinJob", Ask(admin_, &A::PinJob, pin));
  v1::UnpinJobRequest unpin;
  unpin.set_job_id("*");
  unpin.set_pattern(true);
  add("Admin/UnpinJob", Ask(admin_, &A::UnpinJob, unpin));
  v1::ListAuditResponse lines;
  const grpc::Status audited = admin_->ListAudit(Soon().get(), {}, &lines);
  for (v1::AuditEntry& line : *lines.mutable_entries()) line.clear_when_ms();
  add("Admin/ListAudit", Said(audited, lines));
  add("Admin/ListTenants", Ask(admin_, &A::ListTenants, {}));

  v1::WatchEpochRequest watch;
  watch.set_group("dp");
  watch.set_epoch(known.epoch);
  add("Agents/WatchEpoch", Ask(agents_, &G::WatchEpoch, watch, 2));
  v1::EndEpochRequest end;
  end.set_group("dp");
  end.set_epoch(known.epoch);
  add("Agents/EndEpoch", Ask(agents_, &G::EndEpoch, end));
  v1::RendezvousRequest meeting = Meeting();
  v1::RendezvousResponse met;
  const grpc::Status status = agents_->Rendezvous(Soon().get(), meeting, &met);
  met.clear_token();  // random
  met.clear_epoch();  // the server's: it counts all groups' meetings, and is none of a name
  add("Agents/Rendezvous", Said(status, met));

  // As if one's own replica asked, for the other's job: whatever role a tenant gives itself.
  v1::ForwardRequest forward;
  v1::GetPlanRequest ranks = plan;
  ranks.set_tenant("team-a");
  *ranks.mutable_job() = TheJob(1);
  forward.set_incarnation(IncarnationNow());
  forward.set_request(ranks.SerializeAsString());
  add("Peers/Forward", Ask(v1::Peers::NewStub(As("p")), &v1::Peers::Stub::Forward, forward));

  v1::ShowJobsRequest show;
  show.set_incarnation(IncarnationNow());
  show.set_limit(100);
  add("Peers/ShowJobs", Ask(v1::Peers::NewStub(As("p")), &v1::Peers::Stub::ShowJobs, show));
  v1::ForgetJobsRequest forget;
  forget.set_incarnation(IncarnationNow());
  forget.set_tenant("team-a");
  forget.set_pattern("*");
  add("Peers/ForgetJobs", Ask(v1::Peers::NewStub(As("p")), &v1::Peers::Stub::ForgetJobs, forget));

  // Tenants share profiles and what they are measured from (server/decisions/0007).
  v1::ListProfilesResponse profiles;
  const grpc::Status listed = costs_->ListProfiles(Soon().get(), {}, &profiles);
  profiles.clear_samples();
  add("CostProfiles/ListProfiles", Said(listed, profiles));
  v1::GetProfileRequest profile;
  profile.set_profile("h100_nvlink");
  add("CostProfiles/GetProfile", Ask(costs_, &C::GetProfile, profile));
  add("CostProfiles/ReportCosts", Report(As("p")));
  add("CostProfiles/ImportProfile", Ask(costs_, &C::ImportProfile, {}));
  add("CostProfiles/ProposeProfile", Ask(costs_, &C::ProposeProfile, {}));
  add("CostProfiles/PromoteProfile", Ask(costs_, &C::PromoteProfile, {}));
  add("CostProfiles/RollbackProfile", Ask(costs_, &C::RollbackProfile, {}));

  v1::UploadGraphResponse uploaded;
  const grpc::Status sent = Send(*planner_, &uploaded);
  add("Planner/UploadGraph", Said(sent, uploaded));
  add("Planner/GetPlan", Ask(planner_, &P::GetPlan, plan));  // computed, though it is there
  return said;
}

TEST_F(SecuredProbeTest, NoCallTellsWhetherAnotherTenantHasAnything) {
  StartAnew();
  const Known known = Populate();
  const auto beside = AskAll(known);
  // It is all there still.
  v1::ListPlansResponse plans;
  ASSERT_TRUE(v1::Admin::NewStub(As("a"))->ListPlans(Soon().get(), {}, &plans).ok());
  EXPECT_EQ(plans.plans_size(), 1);
  v1::ListJobsResponse jobs;
  ASSERT_TRUE(v1::Admin::NewStub(As("a"))->ListJobs(Soon().get(), {}, &jobs).ok());
  EXPECT_GE(jobs.jobs_size(), 1);
  StartAnew();
  const auto alone = AskAll(known);
  ASSERT_EQ(beside.size(), alone.size());
  std::map<std::string, int> asked;
  for (size_t i = 0; i < beside.size(); ++i) {
    ++asked[beside[i].first];
    EXPECT_EQ(beside[i].second, alone[i].second) << beside[i].first;
  }
  for (const std::string& method : AllMethods()) {
    EXPECT_GE(asked[method], 1) << method << ": no probe; add one to AskAll";
  }
}

TEST_F(SecuredProbeTest, TheSameAsksOfATenantThatHasThemFind) {
  StartAnew();
  const Known known = Populate();
  const auto channel = As("a");
  planner_ = v1::Planner::NewStub(channel);
  admin_ = v1::Admin::NewStub(channel);
  agents_ = v1::Agents::NewStub(channel);
  const auto own = AskAll(known);
  StartAnew();
  const auto nothing = AskAll(known);
  std::map<std::string, bool> tells;
  for (size_t i = 0; i < own.size(); ++i) tells[own[i].first] |= own[i].second != nothing[i].second;
  for (const char* method :
       {"Planner/QueryUpload", "Planner/GetPlan", "Planner/ReleaseJob", "Planner/UploadGraph",
        "Admin/ListPlans", "Admin/EvictPlans", "Admin/ListJobs", "Admin/ListAudit",
        "Admin/ListTenants", "Agents/WatchEpoch"}) {
    EXPECT_TRUE(tells[absl::StrCat("bucketd.v1.", method)]) << method << " tells nothing at all";
  }
}

}  // namespace
}  // namespace bucketd
