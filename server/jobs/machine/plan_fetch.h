// The plan for one signature of a scope: from its pin, if one stands for that signature, else from
// the broker, in nobody's name. What passes (overload, a profile's version that cannot be read) is
// tried again; a pin whose plan cannot be read counts as none, as if the store were away; a pinned
// plan whose cost profile has moved on is weighed against a fresh one (replanning.cc).
//
//   idle -> reads the pin's plan -> [asks for a fresh one -> weighs both] -> done
//   idle -> asks the broker -> done, or idle again
//   idle -> retries later -> idle
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "server/jobs/machine/context.h"
#include "server/jobs/machine/events.h"
#include "server/jobs/machine/job.h"

namespace bucketd {

class PlanFetch {
 public:
  // All outlive this. `signature` is its place in the scope.
  PlanFetch(MachineContext& context, Job& job, const std::string& scope_name, ScopeId scope,
            size_t signature)
      : context_(context),
        job_(job),
        scope_name_(scope_name),
        scope_(scope),
        signature_(signature) {}

  bool idle() const { return phase_ == Phase::kIdle; }
  bool under_way() const { return number_ != 0; }
  bool asks_broker() const {
    return phase_ == Phase::kAsksBroker || phase_ == Phase::kAsksForFresh;
  }
  bool is(const FetchId& fetch) const { return number_ != 0 && number_ == fetch.number; }
  uint64_t number() const { return number_; }
  // Of the last refusal that passes.
  const absl::Status& last_error() const { return last_error_; }
  // Once it is done.
  const std::optional<absl::StatusOr<PlanAnswer>>& result() const { return result_; }

  // REQUIRES: idle. `pin`: of this very signature, or null.
  void Start(std::shared_ptr<PlanRequest> request, const Pin* pin);
  // Idle again, or still waiting for its next try.
  void GiveUp();
  // Ends with an error that stays.
  void Fail(const absl::Status& error) { Finish(error); }
  void RetryLater(const absl::Status& error);

  // Of the following, events, REQUIRES: is(fetch).

  // False: there is no plan. `may_replan`: the scope still gathers.
  bool PinnedPlanHere(const absl::StatusOr<PlanReplyPtr>& reply, bool may_replan);
  // What the broker's answer means to the scope; with kFailed and kGraphRequired it is idle.
  enum class Heard { kDone, kGoesOn, kGraphRequired, kFailed };
  Heard PlanHere(const absl::StatusOr<PlanAnswer>& answer);
  void Weighed(const PlansWeighed& event);
  // A timer of the fetch: another try, or the end of the weighing. Ignores what is not armed.
  void TimerFires(uint64_t number);

  // All ranks wait for nothing else: a weighing ends within half of the time to `deadline`.
  void LimitReplan(SteadyTime deadline);
  // The pinned plan stays. False: nothing is being weighed.
  bool GiveUpReplan();

 private:
  enum class Phase {
    kIdle,
    kReadsPin,
    kAsksBroker,
    kAsksForFresh,  // with the pinned plan in hand
    kWeighs,
    kRetriesLater,
    kDone,
  };

  FetchId Begin(Phase phase);
  void AskTheBroker(Phase phase);
  void Finish(absl::StatusOr<PlanAnswer> result);
  uint64_t Arm(SteadyTime at);
  // replanning.cc. False: the pinned plan, which is here, is not put in question.
  bool StartReplan();
  void FreshPlanHere(const absl::StatusOr<PlanAnswer>& answer);
  void KeepPin();
  void KeepPin(ReplanOutcome outcome, absl::string_view why);

  MachineContext& context_;
  Job& job_;
  const std::string& scope_name_;
  const ScopeId scope_;
  const size_t signature_;

  Phase phase_ = Phase::kIdle;
  uint64_t number_ = 0;  // 0: nothing is under way
  std::shared_ptr<PlanRequest> request_;
  absl::Status last_error_;
  uint64_t retry_timer_ = 0;
  std::optional<absl::StatusOr<PlanAnswer>> result_;

  std::string pinned_key_;
  PlanReplyPtr pinned_;
  GraphPtr graph_;  // held while plans are weighed; null if it rode along with a call
  uint64_t replan_timer_ = 0;
};

}  // namespace bucketd
