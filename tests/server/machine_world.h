// What stands around the state machine of rank agreement in tests: requests, and what is here.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "server/base/errors.h"
#include "server/jobs/machine/job_signature.h"
#include "server/jobs/machine/job_table.h"

namespace bucketd {

inline ProfilePtr ProfileOf(int version) {
  CostProfile profile;
  profile.name = "p";
  profile.version = version;
  return std::make_shared<const KeyedProfile>(profile);
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
  return {outcome, EncodePlanReply(bytes, "a plan key"), 0, {}};
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

// The machine, and time, which stands still but where a test lets a timer fire.
class MachineTest : public ::testing::Test {
 protected:
  explicit MachineTest(std::chrono::milliseconds taken_over_after = {})
      : limits_{.max_jobs = 4, .max_waiting_ranks = 100, .taken_over_after = taken_over_after} {}

  Actions Do(Event event) {
    Actions actions = table_.Handle(now_, std::move(event));
    for (const ArmTimer& arm : All<ArmTimer>(actions)) armed_[arm.timer.number] = arm;
    for (const CancelTimer& cancel : All<CancelTimer>(actions)) armed_.erase(cancel.number);
    return actions;
  }

  // Rank of a scope of `size`, with a deadline 60 s away.
  Actions Rank(uint32_t rank, uint32_t size, std::shared_ptr<PlanRequest> request,
               std::chrono::seconds patience = std::chrono::seconds(60),
               const std::string& scope = "fw") {
    const JobCall job{.tenant = "",
                      .id = "train",
                      .generation = 1,
                      .scope = scope,
                      .ranks = {rank},
                      .size = size,
                      .fresh = false};
    last_call_ = table_.NewCall();
    return Do(Came(last_call_, job, std::move(request), now_ + patience));
  }
  // The first rank's scope, with what the store says of it.
  Actions Loaded(const Actions& first, std::optional<Pin> pin = std::nullopt) {
    const std::vector<LoadScope> load = All<LoadScope>(first);
    EXPECT_THAT(load, ::testing::SizeIs(1));
    return Do(ScopeLoaded{load[0].scope, std::optional<JobMemory>(), std::move(pin)});
  }
  // Of an earlier generation, for a plan that is not the one to be had now.
  static Pin OldPin(std::string plan_key = FakeRequest(1)->key) {
    return {.generation = 0,
            .size = 1,
            .plan_key = std::move(plan_key),
            .profile_as_asked = "p@latest",
            .plan_sha256 = Sha256("old")};
  }
  // That plan, where `from` reads it.
  Actions OldPlanCame(const Actions& from) {
    return Do(
        PinnedPlanCame{All<LoadPinnedPlan>(from)[0].fetch, EncodePlanReply("old", "a plan key")});
  }
  Actions Fire(const ArmTimer& timer) {
    now_ = std::max(now_, timer.at);
    armed_.erase(timer.timer.number);
    return Do(TimerFired{timer.timer});
  }
  // The earliest of all that are armed.
  Actions FireNext() {
    EXPECT_FALSE(armed_.empty());
    if (armed_.empty()) return {};
    const auto sooner = [](const auto& a, const auto& b) { return a.second.at < b.second.at; };
    const ArmTimer next = std::min_element(armed_.begin(), armed_.end(), sooner)->second;
    return Fire(next);
  }
  // The deadline, where no server has a pin.
  Actions FireDeadlineOfAllServers() {
    const std::vector<LoadPinAgain> again = All<LoadPinAgain>(FireNext());
    EXPECT_THAT(again, ::testing::SizeIs(1));
    if (again.empty()) return {};
    return Do(PinLoadedAgain{again[0].scope, std::optional<Pin>()});
  }
  static std::string ErrorOf(const Actions& actions) { return ReasonOf(StatusOf(actions)); }
  static std::string TextOf(const Actions& actions) {
    return std::string(StatusOf(actions).message());
  }

  const AgreementLimits limits_;
  FakeWorld world_;
  SteadyTime now_{std::chrono::seconds(1000)};
  JobTable table_{limits_, world_};
  CallId last_call_ = 0;

 private:
  // The error that all of them got.
  static absl::Status StatusOf(const Actions& actions) {
    EXPECT_FALSE(actions.answers.empty());
    if (actions.answers.empty()) return absl::OkStatus();
    for (const auto& answer : actions.answers) {
      EXPECT_EQ(answer.second.status(), actions.answers[0].second.status());
    }
    return actions.answers[0].second.status();
  }

  std::map<uint64_t, ArmTimer> armed_;
};

}  // namespace bucketd
