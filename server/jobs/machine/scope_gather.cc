// Scope: the plan that is fetched while ranks come, and what happens at their deadline.
#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"

#include "server/base/errors.h"
#include "server/jobs/machine/job_signature.h"
#include "server/jobs/machine/scope.h"
#include "server/jobs/machine/scope_errors.h"

namespace bucketd {
namespace {

// Of how many the plan is fetched before all ranks have come. Two graphs are enough to compare.
constexpr size_t kFetchedSignatures = 2;
constexpr std::chrono::milliseconds kGraceAtDeadline{20};
constexpr std::chrono::milliseconds kGraceOfStore{100};

// The graph itself is to blame, as it was sent; another sender may have a better one.
bool IsFaultOfGraph(absl::string_view reason) {
  constexpr std::array<Reason, 5> kFaults = {Reason::kDigestMismatch, Reason::kContentMismatch,
                                             Reason::kGraphMalformed, Reason::kGraphTooLarge,
                                             Reason::kCodecUnknown};
  return std::any_of(kFaults.begin(), kFaults.end(),
                     [&](Reason fault) { return reason == ReasonName(fault); });
}

}  // namespace

void Scope::Gather() {
  std::deque<Presented>& presented = ranks_.presented();
  if (ranks_.ranks() < size_) {
    const size_t fetched = std::min(kFetchedSignatures, presented.size());
    for (size_t i = 0; i < fetched; ++i) Fetch(presented[i]);
    return;
  }
  if (ranks_.signatures() > 1) {
    StartComparing();
    return;
  }
  Presented& only = ranks_.any();
  if (!only.has_plan()) Fetch(only);
  if (!only.has_plan()) {
    if (only.fetch != nullptr) only.fetch->LimitReplan(ranks_.first_deadline());
  } else if (only.fetch->result()->ok()) {
    StartStoring(only);
  } else {
    Fail(only.fetch->result()->status(), AgreementOutcome::kFailed, true);
  }
}

PlanFetch& Scope::FetchOf(Presented& presented) {
  if (presented.fetch == nullptr) {
    presented.fetch = std::make_unique<PlanFetch>(context_, job_, name_, id_, presented.index);
  }
  return *presented.fetch;
}

void Scope::Fetch(Presented& presented) {
  if (presented.request == nullptr || presented.calls.empty()) return;
  PlanFetch& fetch = FetchOf(presented);
  if (!fetch.idle()) return;
  const bool pinned =
      pin_.has_value() && !presented.fresh && SameSignature(pin_signature_, presented.text);
  fetch.Start(presented.request, pinned ? &*pin_ : nullptr);
}

PlanFetch* Scope::Find(const FetchId& id) {
  std::deque<Presented>& presented = ranks_.presented();
  if (id.signature >= presented.size()) return nullptr;
  PlanFetch* fetch = presented[id.signature].fetch.get();
  return fetch != nullptr && fetch->is(id) ? fetch : nullptr;
}

bool Scope::Wants(const FetchId& fetch) { return Find(fetch) != nullptr; }

void Scope::GiveUpFetches() {
  for (Presented& presented : ranks_.presented()) presented.GiveUpFetch();
}

void Scope::Handle(const PinnedPlanCame& event) {
  PlanFetch* fetch = Find(event.fetch);
  if (fetch == nullptr) return;
  const bool may_replan = stage_ == Stage::kGathering;
  if (!fetch->PinnedPlanHere(event.reply, may_replan)) pin_.reset();
}

void Scope::Handle(const PlansWeighed& event) {
  PlanFetch* fetch = Find(event.fetch);
  if (fetch != nullptr) fetch->Weighed(event);
}

void Scope::Handle(const PlanCame& event) {
  PlanFetch* fetch = Find(event.fetch);
  if (fetch == nullptr) return;
  Presented& presented = ranks_.presented()[event.fetch.signature];
  const CallId sender = std::exchange(presented.inline_sender, 0);
  switch (fetch->PlanHere(event.answer)) {
    case PlanFetch::Heard::kFailed:
      PlanFailed(presented, event.answer.status(), sender);
      return;
    case PlanFetch::Heard::kGraphRequired:
      AskForGraph(presented, event.answer->upload_lease_ms);
      if (stage_ == Stage::kGathering) Fetch(presented);
      return;
    case PlanFetch::Heard::kDone:
    case PlanFetch::Heard::kGoesOn:
      return;
  }
}

void Scope::PlanFailed(Presented& presented, const absl::Status& error, CallId inline_sender) {
  const std::string reason = ReasonOf(error);
  if (inline_sender != 0 && IsFaultOfGraph(reason)) {
    // Its sender alone is told; being told, it is not present any more.
    if (presented.calls.contains(inline_sender)) Answer(inline_sender, error);
  } else if (reason == ReasonName(Reason::kDraining)) {
    Fail(error, AgreementOutcome::kSuperseded, true);
  } else if (reason == ReasonName(Reason::kDeadline) && expired_) {
    Fail(error, AgreementOutcome::kFailed, true);
  } else if (reason == ReasonName(Reason::kOverloaded) ||
             reason == ReasonName(Reason::kQuotaUsedUp)) {
    presented.fetch->RetryLater(error);
  } else if (reason != ReasonName(Reason::kDeadline)) {
    presented.fetch->Fail(error);
  }
}

// The caller who has waited longest is asked. It is not present until it comes back.
void Scope::AskForGraph(Presented& presented, int64_t lease_ms) {
  if (presented.calls.empty()) return;  // the lease runs out, and the broker asks again
  const CallId oldest = *presented.calls.begin();
  presented.asked = context_.calls.find(oldest)->second.ranks;
  presented.asked_to_compare = true;
  Answer(oldest, PlanAnswer{PlanOutcome::kGraphRequired, nullptr, lease_ms, {}});
}

// ---- the deadline: the earliest of all that wait

void Scope::ArmDeadlineAt(SteadyTime at) {
  if (deadline_timer_ != 0) context_.Do(CancelTimer{deadline_timer_});
  deadline_timer_ = context_.NewId();
  deadline_timer_at_ = at;
  context_.Do(ArmTimer{{id_, 0, deadline_timer_}, at});
}

void Scope::ArmDeadline() {
  if (ranks_.none()) return;
  const SteadyTime first = ranks_.first_deadline();
  if (deadline_timer_ == 0 || deadline_timer_at_ > first) ArmDeadlineAt(first);
}

void Scope::Handle(const TimerFired& event) {
  const uint64_t number = event.timer.number;
  if (number == deadline_timer_) {
    deadline_timer_ = 0;
    AtDeadline();
  } else if (number == compare_timer_) {
    if (stage_ == Stage::kComparing) Differ();
  } else if (event.timer.signature < ranks_.presented().size()) {
    PlanFetch* fetch = ranks_.presented()[event.timer.signature].fetch.get();
    if (fetch != nullptr) fetch->TimerFires(number);
  }
}

void Scope::AtDeadline() {
  if (ranks_.none()) {
    // Whoever was asked for the graph has not come back, and may have to wait anew if it does.
    over_ = undecided();
  } else if (ranks_.first_deadline() > context_.now) {
    ArmDeadline();  // whose deadline it was has left
  } else if (job_.unplanned.has_value()) {
    AnswerUnplanned();
  } else if (stage_ == Stage::kStoring) {
    // What is agreed stays agreed; whoever calls again gets it.
    AnswerAll(MakeError(Reason::kDeadline, "the plan is agreed on and being stored; ask again"));
  } else if (stage_ == Stage::kComparing || ranks_.signatures() > 1) {
    Differ();
  } else if (ranks_.ranks() < size_) {
    RanksMissing();
  } else {
    PlanIsLate(ranks_.any());
  }
}

// They may have agreed at another server that has the store open. One that does not answer keeps
// nobody from hearing who is missing.
void Scope::RanksMissing() {
  if (pin_read_again_) {
    Fail(MissingError(*this), AgreementOutcome::kMissing, false);
    return;
  }
  pin_read_again_ = true;
  ArmDeadlineAt(context_.now + kGraceOfStore);
  context_.Do(LoadPinAgain{id_, job_.name, name_});
}

void Scope::Handle(const PinLoadedAgain& event) {
  if (stage_ != Stage::kLoading && stage_ != Stage::kGathering) return;
  const bool agreed =
      event.pin.ok() && event.pin->has_value() && (*event.pin)->generation == job_.generation;
  if (agreed) UsePin(**event.pin);
  if (stage_ == Stage::kLoading || stage_ == Stage::kGathering) AtDeadline();
}

void Scope::PlanIsLate(Presented& presented) {
  PlanFetch* fetch = presented.fetch.get();
  if (fetch != nullptr && fetch->GiveUpReplan()) return;
  if (fetch != nullptr && fetch->asks_broker() && !expired_) {
    expired_ = true;  // the broker knows what it was waiting for, and says so to all
    // Unless it has just said something else, and that was no answer.
    ArmDeadlineAt(context_.now + kGraceAtDeadline);
    context_.Do(HurryFetch{fetch->number()});
    return;
  }
  const absl::Status late =
      fetch != nullptr && !fetch->last_error().ok()
          ? fetch->last_error()
          : MakeError(Reason::kDeadline,
                      absl::StrFormat("all %d ranks of scope %s agree; their plan was not there "
                                      "%.1f s after the first of them",
                                      size_, name_, seconds()));
  Fail(late, AgreementOutcome::kFailed, true);
}

}  // namespace bucketd
