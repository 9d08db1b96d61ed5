// PlanFetch: a generation whose cost profile has moved on since its plan was pinned. Nobody fails
// or waits for long because of it: where anything is in the way, the pinned plan stays.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/plan_key.h"
#include "server/config/cost_options.h"
#include "server/costs/cost_names.h"
#include "server/jobs/machine/plan_fetch.h"

namespace bucketd {
namespace {

// Once all ranks are there; at most half of the time that is left.
constexpr std::chrono::seconds kMaxReplan{10};

std::string Milliseconds(int64_t picoseconds) {
  return absl::StrFormat("%.6f", static_cast<double>(picoseconds) * 1e-9);
}

}  // namespace

bool PlanFetch::StartReplan() {
  if (context_.limits.replan_gain_ppm == CostOptions::kNeverReplan ||
      !ParseProfileSpec(request_->profile_as_asked, "").latest) {
    return false;
  }
  const absl::Status fixed = job_.UseFixedProfile(*request_, context_.around);
  if (!fixed.ok()) {
    KeepPin(ReplanOutcome::kFailed, fixed.message());
    return true;
  }
  if (ProfileIdOf(pinned_key_) == ProfileId(*request_->profile)) return false;
  graph_ = context_.around.Graph(request_->graph_key);
  if (graph_ == nullptr && request_->graph == nullptr) {
    KeepPin(ReplanOutcome::kNoGraph, "its graph is not here any more");
  } else {
    AskTheBroker(Phase::kAsksForFresh);
  }
  return true;
}

void PlanFetch::FreshPlanHere(const absl::StatusOr<PlanAnswer>& answer) {
  if (!answer.ok()) {
    KeepPin(ReplanOutcome::kFailed, answer.status().message());
  } else if (answer->outcome == PlanOutcome::kGraphRequired) {
    // Nobody will send the graph that was asked for here; it ends the wait of others, too.
    if (graph_ != nullptr) context_.Do(OfferGraph{request_->graph_key, graph_});
    KeepPin(ReplanOutcome::kNoGraph, "its graph left the cache just now");
  } else {
    GraphPtr graph = std::move(graph_);
    if (graph == nullptr) graph = context_.around.Graph(request_->graph_key);
    if (graph == nullptr) {
      KeepPin(ReplanOutcome::kNoGraph, "its graph is not here any more");
    } else {
      context_.Do(WeighPlans{Begin(Phase::kWeighs), std::move(graph), pinned_, *answer, request_});
    }
  }
}

void PlanFetch::Weighed(const PlansWeighed& event) {
  number_ = 0;
  if (!event.verdict.ok()) {
    KeepPin(ReplanOutcome::kFailed, event.verdict.status().message());
    return;
  }
  const ReplanVerdict& verdict = *event.verdict;
  context_.out.counts.push_back(verdict.replace ? ReplanOutcome::kReplaced : ReplanOutcome::kKept);
  context_.Inform(NoteOn(job_, scope_name_,
                         verdict.replace ? "pinned plan replaced" : "pinned plan kept",
                         {{"profile", std::string(ProfileIdOf(pinned_key_))},
                          {"now", ProfileId(*request_->profile)},
                          {"pinned_ms", Milliseconds(verdict.pinned_ps), true},
                          {"fresh_ms", Milliseconds(verdict.fresh_ps), true},
                          {"gain_ppm", absl::StrCat(verdict.gain_ppm), true},
                          {"least_ppm", absl::StrCat(context_.limits.replan_gain_ppm), true}}));
  KeepPin();
  if (verdict.replace) result_ = event.fresh;
}

void PlanFetch::KeepPin() {
  Finish(PlanAnswer{PlanOutcome::kPinned, std::move(pinned_), 0, {}});
  pinned_.reset();
  graph_.reset();
}

void PlanFetch::KeepPin(ReplanOutcome outcome, absl::string_view why) {
  KeepPin();
  context_.out.counts.push_back(outcome);
  context_.Inform(NoteOn(job_, scope_name_, "pinned plan kept",
                         {{"outcome", std::string(Name(outcome))}, {"why", std::string(why)}}));
}

void PlanFetch::LimitReplan(SteadyTime deadline) {
  if (pinned_ == nullptr || replan_timer_ != 0) return;
  replan_timer_ =
      Arm(context_.now + std::min<SteadyTime::duration>(kMaxReplan, (deadline - context_.now) / 2));
}

// A plan that is being computed goes on to be: the next generation finds it.
bool PlanFetch::GiveUpReplan() {
  if (pinned_ == nullptr) return false;
  PlanReplyPtr pinned = pinned_;
  GiveUp();
  pinned_ = std::move(pinned);
  KeepPin(ReplanOutcome::kFailed, "the plan under the costs of now is not here");
  return true;
}

}  // namespace bucketd
