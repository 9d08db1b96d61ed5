// One scope (tenant, job, generation, name) of rank agreement, as a state machine: events in,
// actions out; no threads, no clock, no calls.
//
// A scope gathers calls; each presents a signature (job_signature.h) for its ranks. Meanwhile the
// plan is fetched (plan_fetch.h) for the first two signatures. If the broker asks for the graph,
// one of the callers that wait is asked, and the next fetch takes its place in the broker's queue.
// A rank is present while a call that speaks for it waits (waiting_ranks.h), so whoever uploads is
// present again when it comes back. The verdict falls when all ranks are present, or when the first
// of their deadlines nears:
//   one signature, and its plan is here    the pin is written, then all get the plan
//   one signature, planning failed         all get that error
//   several signatures                     RANKS_DIFFER, with the first differing node of two
//   a rank's call cannot be served         its error, naming it
//   ranks are missing at the deadline      RANKS_MISSING
// An agreed scope stays agreed: a rank that calls again gets the same bytes, one that presents
// something else is refused alone. A failed one stays failed until every rank has heard of it.
//
// Whatever happens, Step() then does what can be done now; nothing else moves a scope on.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "server/jobs/machine/context.h"
#include "server/jobs/machine/events.h"
#include "server/jobs/machine/job.h"
#include "server/jobs/machine/waiting_ranks.h"

namespace bucketd {

class Scope {
 public:
  enum class Stage {
    kLoading,    // its pin is being read
    kGathering,  // ranks are coming, and the plan
    kComparing,  // all came, with different signatures: two graphs are wanted for the message
    kStoring,    // all agree and the plan is here; the pin is being written
    kAgreed,
    kFailed,
  };

  // Asks for its pin and the job's memory. Both outlive it.
  Scope(MachineContext& context, Job& job, ScopeId id, const JobCall& first, const CallIds& call);
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // Events, for Step() to follow. Of those that name a fetch or a timer: ignored if that is not
  // the one that is under way.
  void Handle(RankCame& event);
  void Handle(const RankRefused& event);
  void Handle(const CallerLeft& event);
  void Handle(const ScopeLoaded& event);  // after the job's memory has been used
  void Handle(const PinLoadedAgain& event);
  void Handle(const PinnedPlanCame& event);
  void Handle(const PlanCame& event);
  void Handle(const PlansWeighed& event);
  void Handle(const GraphDecoded& event);
  void Handle(const DifferenceSought& event);
  void Handle(const AgreedStored& event);
  void Handle(const TimerFired& event);
  void Handle(const DrainBegan& event);
  // Whether this call takes a place, if there is one.
  bool WouldWait(const RankCame& event) const;
  // The place of a call that waits here goes to another one. For Step() to follow, unless the scope
  // is deserted then.
  void GiveWay(CallId call, const absl::Status& why);
  // The generation is over, or it stays unplanned and the store knows: the scope ends.
  void Supersede(const absl::Status& over);
  void AnswerUnplanned();
  // Moves on as far as it goes.
  void Step();
  // Its ranks run with a plan that the store could not keep, and that is to be tried again.
  bool awaits_pin() const { return stage_ == Stage::kAgreed && awaits_pin_; }
  void StoreAgain();  // REQUIRES awaits_pin(). AgreedStored
  // Other servers may have taken its job over since: until the store has spoken it answers nobody.
  void Doubt() { doubted_ = true; }
  // Gives up what is under way. REQUIRES: nobody waits.
  void Close();

  // Nothing is left to remember: REQUIRES that it is closed before anything else happens to it.
  bool over() const { return over_; }
  // Whether this fetch is still wanted.
  bool Wants(const FetchId& fetch);

  ScopeId id() const { return id_; }
  const std::string& name() const { return name_; }
  Job& job() const { return job_; }
  uint32_t size() const { return size_; }
  Stage stage() const { return stage_; }
  // Nobody waits, nothing is agreed on, and whoever comes may begin anew.
  bool is_deserted() const { return undecided() && ranks_.none(); }
  bool undecided() const { return stage_ < Stage::kStoring; }
  SteadyTime since() const { return since_; }  // its first rank
  double seconds() const { return context_.SecondsSince(since_); }
  const WaitingRanks& ranks() const { return ranks_; }
  const RankList& turned_away() const { return turned_away_; }
  const Pin& agreed() const { return *agreed_; }  // REQUIRES: it has agreed, or is about to
  const std::string& agreed_signature() const { return agreed_signature_; }
  bool pinned() const { return pinned_; }
  const absl::Status& verdict() const { return verdict_; }

 private:
  // scope.cc: callers.
  void Wait(RankCame& event);
  absl::Status CheckRoom() const;
  absl::Status CheckSignatures(const RankCame& event) const;
  void TurnAway(const RankCame& event, const absl::Status& why);
  void FoundNoRoom(absl::Span<const uint32_t> ranks);
  void Know(absl::Span<const uint32_t> ranks);  // of the verdict
  absl::Status CheckFits(const RankCame& event) const;
  absl::Status CheckRepeated(const RankCame& event) const;
  void KeepRequest(Presented& presented, RankCame& event);
  void CameWithGraph(Presented& presented, RankCame& event);
  void Take(CallId call);
  void Answer(CallId call, absl::StatusOr<PlanAnswer> answer);
  void AnswerAll(const absl::StatusOr<PlanAnswer>& answer);
  void KeepBytes(int64_t bytes);

  // scope_gather.cc: the plan that is fetched while ranks come, and the deadline.
  void Gather();
  void Fetch(Presented& presented);
  PlanFetch& FetchOf(Presented& presented);
  PlanFetch* Find(const FetchId& fetch);
  void PlanFailed(Presented& presented, const absl::Status& error, CallId inline_sender);
  void AskForGraph(Presented& presented, int64_t lease_ms);
  void ArmDeadline();
  void ArmDeadlineAt(SteadyTime at);
  void AtDeadline();
  void RanksMissing();
  void PlanIsLate(Presented& presented);
  void GiveUpFetches();

  // scope_compare.cc: ranks that differ.
  enum class Coming { kHere, kComing, kNever };
  void StartComparing();
  bool StillDiffer() const;
  void Compare();
  Coming GraphToCompare(Presented& presented);
  void DecodeToCompare(Presented& presented, RankCame& event);
  void Differ(absl::string_view difference = "", absl::string_view node = "");

  // scope_verdict.cc: how it ends.
  void UsePin(const Pin& pin);
  void StartStoring(Presented& presented);
  bool UseStanding(const absl::StatusOr<StandingPin>& standing);
  void Agree(const absl::Status& stored);
  bool MayBeElsewhere(const absl::Status& stored) const;
  void KeptLate(const absl::StatusOr<StandingPin>& standing);
  void AnswerAgreed(CallId call, absl::Span<const uint32_t> ranks, absl::string_view signature);
  void AnswerFailed(CallId call, absl::Span<const uint32_t> ranks);
  // Transient verdicts are forgotten at once.
  void Fail(const absl::Status& verdict, AgreementOutcome outcome, bool transient);
  void Settle();  // what only waiting ranks needed goes
  void CancelTimers();

  MachineContext& context_;
  Job& job_;
  const ScopeId id_;
  const std::string name_;
  const uint32_t size_;
  const SteadyTime since_;  // its first rank
  const CallIds call_;      // of the first rank: what happens to all is logged under its name
  Stage stage_ = Stage::kLoading;
  bool over_ = false;
  int64_t bytes_ = 0;  // of signatures, requests, a plan, and who was told, that are kept

  std::optional<Pin> pin_;  // of an earlier generation
  std::string pin_signature_;

  WaitingRanks ranks_;
  uint64_t deadline_timer_ = 0;
  SteadyTime deadline_timer_at_;
  bool expired_ = false;         // the broker is asked what it waited for
  bool pin_read_again_ = false;  // at the deadline
  absl::Status refusal_;         // of a rank whose call cannot be served
  RankList turned_away_;         // ranks that there was no room for, a few of them

  // kComparing.
  std::array<size_t, 2> compared_{};
  uint64_t compare_timer_ = 0;
  bool difference_is_sought_ = false;

  // kStoring, kAgreed.
  std::shared_ptr<const Pin> agreed_;  // with thousands of calls that are answered from it
  std::string agreed_signature_;
  PlanReplyPtr reply_;  // in kAgreed only where there is no pin
  PlanOutcome outcome_ = PlanOutcome::kHit;
  CallId first_call_ = 0;
  Actor by_;  // of the first that presented it
  bool pinned_ = false;
  bool awaits_pin_ = false;
  bool doubted_ = false;
  SteadyTime complete_;  // when all ranks were here

  // kFailed.
  absl::Status verdict_;
  absl::flat_hash_set<uint32_t> told_;  // ranks that know of it
  static constexpr int64_t kBytesOfKnown = 10;
};

}  // namespace bucketd
