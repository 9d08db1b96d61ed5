#include "server/jobs/machine/plan_fetch.h"

#include <chrono>
#include <utility>

#include "server/jobs/machine/scope_errors.h"

namespace bucketd {
namespace {

constexpr std::chrono::milliseconds kRetry{200};

}  // namespace

FetchId PlanFetch::Begin(Phase phase) {
  phase_ = phase;
  number_ = context_.NewId();
  return {scope_, signature_, number_};
}

void PlanFetch::Start(std::shared_ptr<PlanRequest> request, const Pin* pin) {
  request_ = std::move(request);
  if (pin != nullptr) {
    pinned_key_ = pin->plan_key;
    context_.Do(LoadPinnedPlan{Begin(Phase::kReadsPin), *pin});
    return;
  }
  const absl::Status fixed = job_.UseFixedProfile(*request_, context_.around);
  if (fixed.ok()) {
    AskTheBroker(Phase::kAsksBroker);
  } else if (absl::IsUnavailable(fixed)) {
    RetryLater(fixed);
  } else {
    Fail(fixed);
  }
}

void PlanFetch::AskTheBroker(Phase phase) { context_.Do(AskBroker{Begin(phase), request_}); }

void PlanFetch::Finish(absl::StatusOr<PlanAnswer> result) {
  phase_ = Phase::kDone;
  number_ = 0;
  result_ = std::move(result);
}

void PlanFetch::GiveUp() {
  if (asks_broker()) context_.Do(GiveUpFetch{number_});
  if (number_ != 0) phase_ = Phase::kIdle;
  number_ = 0;
  pinned_.reset();
  graph_.reset();
}

uint64_t PlanFetch::Arm(SteadyTime at) {
  const uint64_t number = context_.NewId();
  context_.Do(ArmTimer{{scope_, signature_, number}, at});
  return number;
}

void PlanFetch::RetryLater(const absl::Status& error) {
  phase_ = Phase::kRetriesLater;
  number_ = 0;
  last_error_ = error;
  retry_timer_ = Arm(context_.now + kRetry);
}

void PlanFetch::TimerFires(uint64_t number) {
  if (number == retry_timer_ && phase_ == Phase::kRetriesLater) phase_ = Phase::kIdle;
  if (number != replan_timer_) return;
  replan_timer_ = 0;  // the pin may be read once more just now, and is weighed again then
  GiveUpReplan();
}

bool PlanFetch::PinnedPlanHere(const absl::StatusOr<PlanReplyPtr>& reply, bool may_replan) {
  phase_ = Phase::kIdle;
  number_ = 0;
  if (reply.ok()) {
    pinned_ = *reply;
    if (!may_replan || !StartReplan()) KeepPin();
    return true;
  }
  context_.out.counts.push_back(IsLost(reply.status()) ? Tally::kPinLost : Tally::kPinUnread);
  context_.Warn(NoteOn(job_, scope_name_, "the pinned plan was not read and is planned anew",
                       {{"error", std::string(reply.status().message())}}));
  return false;
}

PlanFetch::Heard PlanFetch::PlanHere(const absl::StatusOr<PlanAnswer>& answer) {
  number_ = 0;
  if (phase_ == Phase::kAsksForFresh) {
    FreshPlanHere(answer);
    return phase_ == Phase::kDone ? Heard::kDone : Heard::kGoesOn;
  }
  phase_ = Phase::kIdle;
  if (!answer.ok()) return Heard::kFailed;
  if (answer->outcome == PlanOutcome::kGraphRequired) return Heard::kGraphRequired;
  Finish(answer);
  return Heard::kDone;
}

}  // namespace bucketd
