// What stands around the state machine of rank agreement in tests: requests, and what is here.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/jobs/machine/job_signature.h"
#include "server/jobs/machine/job_table.h"

namespace bucketd {

inline ProfilePtr ProfileOf(int version) {
  auto profile = std::make_shared<CostProfile>();
  profile->name = "p";
  profile->version = version;
  return profile;
}

// What is here now, as a test sets it.
class FakeWorld final : public Surroundings {
 public:
  GraphPtr Graph(const std::string& key) const override {
    // Nobody looks into it.
    return HasGraph(key) ? GraphPtr(std::make_shared<int>(0),
                                    reinterpret_cast<bucketd::Graph*>(const_cast<int*>(&kNothing)))
                         : nullptr;
  }
  bool HasGraph(const std::string& key) const override { return graphs.contains(key); }
  absl::StatusOr<ProfilePtr> Profile(const std::string& id) const override {
    for (int version = 1; version <= 3; ++version) {
      if (id == absl::StrCat("p@", version)) return ProfileOf(version);
    }
    return absl::NotFoundError(absl::StrCat("no ", id));
  }
  std::optional<std::string> PlanningDisabled() const override { return disabled; }

  std::set<std::string> graphs;
  std::optional<std::string> disabled;

 private:
  static constexpr int kNothing = 0;
};

// A rank's request: one graph and one set of options each; "p@latest" resolved to `latest`.
inline std::shared_ptr<PlanRequest> FakeRequest(int graph, int prefetch = 1, int latest = 1) {
  auto request = std::make_shared<PlanRequest>();
  request->digest = Sha256(absl::StrCat("graph ", graph));
  request->graph_key = GraphKey("", request->digest);
  request->options.prefetch_forward = prefetch;
  request->profile_as_asked = "p@latest";
  SetProfile(*request, ProfileOf(latest));
  return request;
}

inline Digest FakeSignatureId(const std::string& signature, bool fresh) {
  return Sha256(absl::StrCat(signature, fresh ? "fresh" : ""));
}

inline RankCame Came(CallId call, const JobCall& job, std::shared_ptr<PlanRequest> request,
                     SteadyTime deadline) {
  std::string signature = SignatureOf(request->key, request->profile_as_asked);
  const Digest id = FakeSignatureId(signature, job.fresh);
  return {call, job, std::move(request), std::move(signature), id, deadline};
}

inline PlanAnswer FakePlan(const std::string& bytes, PlanOutcome outcome = PlanOutcome::kComputed) {
  return {outcome, EncodePlanReply(bytes), 0, {}};
}

// The actions of one kind, in their order.
template <typename Kind>
std::vector<Kind> All(const Actions& actions) {
  std::vector<Kind> found;
  for (const Action& action : actions.rest) {
    if (const auto* kind = std::get_if<Kind>(&action)) found.push_back(*kind);
  }
  return found;
}

}  // namespace bucketd
