// Ranks of jobs, over real gRPC.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/cost/profile.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "proto/cost_service.grpc.pb.h"
#include "proto/graph.pb.h"
#include "proto/plan.pb.h"
#include "tests/server/fixture.h"

namespace bucketd {

using absl::StrContains;

// The forward graph with one node changed: another FLOP count, and so another digest.
inline const TestGraph& ChangedGraph() {
  static const TestGraph graph = [] {
    TestGraph changed = ForwardGraph();
    v1::Graph message;
    EXPECT_TRUE(message.ParseFromString(changed.bytes));
    int node = 0;
    while ((message.nodes(node).flags() & 2) == 0) ++node;
    message.mutable_nodes(node)->set_flops(message.nodes(node).flops() + 1);
    const absl::StatusOr<Graph> parsed = GraphFromBytes(message.SerializeAsString());
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    message.Clear();
    GraphToProto(*parsed, message);
    changed.bytes = message.SerializeAsString();
    changed.digest = GraphDigest(*parsed);
    return changed;
  }();
  return graph;
}

inline int ChangedNode() {
  v1::Graph message;
  EXPECT_TRUE(message.ParseFromString(ForwardGraph().bytes));
  int node = 0;
  while ((message.nodes(node).flags() & 2) == 0) ++node;
  return node;
}

struct JobSpec {
  std::string id = "train";
  uint64_t generation = 1;
  std::string scope = "0/0/fw";
  uint32_t size = 4;
  bool fresh = false;
  std::string cost_profile = "";
  std::string mode = "";
};

inline v1::GetPlanRequest JobRequest(const TestGraph& graph, const JobSpec& spec,
                                     const std::vector<uint32_t>& ranks) {
  v1::GetPlanRequest request = RequestFor(graph);
  v1::Job& job = *request.mutable_job();
  job.set_id(spec.id);
  job.set_generation(spec.generation);
  job.set_scope(spec.scope);
  job.set_size(spec.size);
  job.set_fresh(spec.fresh);
  if (!spec.cost_profile.empty()) request.mutable_options()->set_cost_profile(spec.cost_profile);
  for (const uint32_t rank : ranks) job.add_rank(rank);
  if (!spec.mode.empty()) request.mutable_options()->set_mode(spec.mode);
  return request;
}

using Calls = std::vector<std::future<Reply>>;

class AgreementTest : public ServerTest {
 protected:
  // What a client does: asks, uploads if it is asked to, asks again.
  Reply RankCall(const TestGraph& graph, const v1::GetPlanRequest& request,
                 milliseconds deadline = milliseconds(60'000)) {
    Reply reply = GetPlan(request, deadline);
    for (int round = 0; round < 3 && reply.asked_to_upload(); ++round) {
      const grpc::Status uploaded = Upload(graph);
      EXPECT_TRUE(uploaded.ok()) << uploaded.error_message();
      reply = GetPlan(request, deadline);
    }
    return reply;
  }

  std::future<Reply> Rank(const TestGraph& graph, const JobSpec& spec, std::vector<uint32_t> ranks,
                          milliseconds deadline = milliseconds(60'000)) {
    return std::async(std::launch::async, [=, this, &graph] {
      return RankCall(graph, JobRequest(graph, spec, ranks), deadline);
    });
  }

  Calls AllRanks(const TestGraph& graph, const JobSpec& spec,
                 milliseconds deadline = milliseconds(60'000)) {
    Calls calls;
    for (uint32_t r = 0; r < spec.size; ++r) calls.push_back(Rank(graph, spec, {r}, deadline));
    return calls;
  }

  // The plan that all of them got, byte for byte; "" if that is not so.
  static std::string PlanOfAll(Calls& calls, v1::PlanSource* source = nullptr) {
    std::string plan;
    for (std::future<Reply>& call : calls) {
      const Reply reply = call.get();
      EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
      EXPECT_TRUE(reply.response.has_plan());
      if (!reply.response.has_plan()) return "";
      if (plan.empty()) plan = reply.response.plan().plan();
      EXPECT_EQ(reply.response.plan().plan(), plan);
      if (source != nullptr) *source = reply.source();
    }
    return plan;
  }

  // The error that all of them got.
  static grpc::Status ErrorOfAll(Calls& calls) {
    grpc::Status first;
    for (std::future<Reply>& call : calls) {
      const Reply reply = call.get();
      EXPECT_FALSE(reply.status.ok());
      if (first.ok()) first = reply.status;
      EXPECT_EQ(reply.status.error_code(), first.error_code());
      EXPECT_EQ(reply.status.error_message(), first.error_message());
      EXPECT_EQ(reply.status.error_details(), first.error_details());
    }
    return first;
  }

  // As the next version of its name, and that as `latest`: "name@version".
  std::string Promote(const CostProfile& profile) {
    const auto stub = v1::CostProfiles::NewStub(NewChannel());
    v1::ImportProfileRequest import;
    ProfileToProto(profile, *import.mutable_profile());
    v1::ImportProfileResponse imported;
    grpc::ClientContext one, two;
    const grpc::Status added = stub->ImportProfile(&one, import, &imported);
    EXPECT_TRUE(added.ok()) << added.error_message();
    v1::PromoteProfileRequest promote;
    promote.set_name(profile.name);
    promote.set_version(imported.version().version());
    v1::PromoteProfileResponse promoted;
    const grpc::Status status = stub->PromoteProfile(&two, promote, &promoted);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return absl::StrCat(profile.name, "@", imported.version().version());
  }
  // That a plan says it was made with.
  static std::string ProfileOf(const std::string& plan) {
    v1::Plan message;
    EXPECT_TRUE(message.ParseFromString(plan));
    return message.provenance().cost_profile();
  }

  bool EventuallyRanksWait(int ranks) {
    return Eventually([&] { return Metric("bucketd_agreement_waiting_ranks") == ranks; });
  }
  double Agreements(const std::string& outcome) {
    return Metric("bucketd_agreements_total", "outcome", outcome);
  }
};

}  // namespace bucketd
