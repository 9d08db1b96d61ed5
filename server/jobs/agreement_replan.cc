// Agreement: a generation whose cost profile has moved on since its plan was pinned. Nobody fails
// or waits for long because of it: where anything is in the way, the pinned plan stays.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/plan_key.h"
#include "server/base/log.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_names.h"
#include "server/jobs/agreement.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

// Once all ranks are there; at most half of the time that is left.
constexpr std::chrono::seconds kMaxReplan{10};

std::string Milliseconds(int64_t picoseconds) {
  return absl::StrFormat("%.6f", static_cast<double>(picoseconds) * 1e-9);
}

}  // namespace

bool Agreement::StartReplan(const ScopeState& scope, Presented& presented, Actions& actions) {
  PlanRequest& request = *presented.request;
  if (parts_.options.costs.replan_gain_ppm == CostOptions::kNeverReplan ||
      scope.stage != ScopeStage::kGathering ||
      !ParseProfileSpec(request.profile_as_asked, "").latest) {
    return false;
  }
  const absl::Status fixed = UseFixedProfile(*scope.job, request);
  if (!fixed.ok()) {
    KeepPin(scope, presented, ReplanOutcome::kFailed, fixed.message());
    return true;
  }
  if (ProfileIdOf(scope.pin->plan_key) == ProfileId(*request.profile)) return false;
  presented.graph_to_judge = parts_.graphs.Get(request.graph_key);
  if (presented.graph_to_judge == nullptr && request.graph == nullptr) {
    KeepPin(scope, presented, ReplanOutcome::kNoGraph, "its graph is not here any more");
    return true;
  }
  AskBroker(scope, presented, actions);
  return true;
}

void Agreement::FreshPlanCame(ScopeState& scope, Presented& presented, const Answer& answer,
                              Actions& actions) {
  GraphPtr graph = std::move(presented.graph_to_judge);
  const std::string& graph_key = presented.request->graph_key;
  if (!answer.ok()) {
    KeepPin(scope, presented, ReplanOutcome::kFailed, answer.status().message());
  } else if (answer->outcome == PlanOutcome::kGraphRequired) {
    KeepPin(scope, presented, ReplanOutcome::kNoGraph, "its graph left the cache just now");
    // Nobody will send the graph that was asked for here; it ends the wait of others, too.
    if (graph != nullptr) {
      actions.calls.push_back(
          [this, graph_key, graph] { parts_.broker.GraphArrived(graph_key, graph); });
    }
  } else {
    if (graph == nullptr) graph = parts_.graphs.Get(graph_key);
    if (graph != nullptr) {
      Judge(scope, presented, std::move(graph), *answer, actions);
      return;
    }
    KeepPin(scope, presented, ReplanOutcome::kNoGraph, "its graph is not here any more");
  }
  if (scope.stage == ScopeStage::kGathering) Gather(scope, actions);
}

void Agreement::Judge(const ScopeState& scope, Presented& presented, GraphPtr graph,
                      const PlanAnswer& fresh, Actions& actions) {
  presented.probe = ++last_id_;
  const auto done = [this, id = scope.id, index = presented.index, probe = presented.probe,
                     fresh](const absl::StatusOr<ReplanVerdict>& verdict) {
    Judged(id, index, probe, fresh, verdict);
  };
  const auto run = [done, graph = std::move(graph), pinned = presented.pinned, fresh,
                    request = presented.request, least = parts_.options.costs.replan_gain_ppm] {
    done(JudgeReplan(*graph, PlanBytesOf(*pinned), PlanBytesOf(*fresh.reply), *request, least));
  };
  actions.work.push_back({.run = run, .refused = [done] {
                            done(absl::UnavailableError("too much is waiting for the store"));
                          }});
}

void Agreement::Judged(uint64_t scope_id, size_t index, uint64_t probe, const PlanAnswer& fresh,
                       const absl::StatusOr<ReplanVerdict>& verdict) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    Presented* presented = FindProbe(scope, index, probe);
    if (presented == nullptr) return;
    presented->probe = 0;
    if (!verdict.ok()) {
      KeepPin(*scope, *presented, ReplanOutcome::kFailed, verdict.status().message());
    } else {
      const ReplanOutcome outcome =
          verdict->replace ? ReplanOutcome::kReplaced : ReplanOutcome::kKept;
      LogLine(spdlog::level::info, absl::StrCat("pinned plan ", Name(outcome)),
              {{"tenant", scope->job->name.first},
               {"job", scope->job->name.second},
               {"generation", absl::StrCat(scope->job->generation), true},
               {"scope", scope->name},
               {"profile", std::string(ProfileIdOf(scope->pin->plan_key))},
               {"now", ProfileId(*presented->request->profile)},
               {"pinned_ms", Milliseconds(verdict->pinned_ps), true},
               {"fresh_ms", Milliseconds(verdict->fresh_ps), true},
               {"gain_ppm", absl::StrCat(verdict->gain_ppm), true},
               {"least_ppm", absl::StrCat(parts_.options.costs.replan_gain_ppm), true}});
      parts_.metrics.replans(outcome).Increment();
      KeepPin(*presented);
      if (verdict->replace) presented->result = fresh;
    }
    if (scope->stage == ScopeStage::kGathering)
      Gather(*scope, actions);
    else if (scope->stage == ScopeStage::kComparing)
      CompareStep(*scope, actions);
  }
  Run(std::move(actions));
}

void Agreement::KeepPin(Presented& presented) {
  presented.result = PlanAnswer{PlanOutcome::kPinned, std::move(presented.pinned), 0, {}};
  presented.pinned.reset();
  presented.graph_to_judge.reset();
}

void Agreement::KeepPin(const ScopeState& scope, Presented& presented, ReplanOutcome outcome,
                        absl::string_view why) {
  KeepPin(presented);
  parts_.metrics.replans(outcome).Increment();
  LogLine(spdlog::level::info, "pinned plan kept",
          {{"tenant", scope.job->name.first},
           {"job", scope.job->name.second},
           {"generation", absl::StrCat(scope.job->generation), true},
           {"scope", scope.name},
           {"outcome", std::string(Name(outcome))},
           {"why", std::string(why)}});
}

void Agreement::LimitReplan(const ScopeState& scope, Presented& presented) {
  if (presented.pinned == nullptr || presented.replan_is_limited) return;
  presented.replan_is_limited = true;
  const SteadyTime now = Clock::now();
  const Clock::duration left = scope.deadlines.begin()->first - now;
  parts_.timers.Schedule(
      now + std::min<Clock::duration>(kMaxReplan, left / 2),
      [this, id = scope.id, index = presented.index] { ReplanTimedOut(id, index); });
}

void Agreement::ReplanTimedOut(uint64_t scope_id, size_t index) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    if (scope == nullptr || index >= scope->presented.size()) return;
    if (!GiveUpReplan(*scope, scope->presented[index], actions)) return;
    if (scope->stage == ScopeStage::kGathering) Gather(*scope, actions);
  }
  Run(std::move(actions));
}

// A plan that is being computed goes on to be: the next generation finds it.
bool Agreement::GiveUpReplan(const ScopeState& scope, Presented& presented, Actions& actions) {
  if (presented.pinned == nullptr) return false;
  PlanReplyPtr pinned = presented.pinned;
  CancelProbe(presented, actions);
  presented.pinned = std::move(pinned);
  KeepPin(scope, presented, ReplanOutcome::kFailed, "the plan under the costs of now is not here");
  return true;
}

}  // namespace bucketd
