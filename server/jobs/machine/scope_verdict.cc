// Scope: how it ends, and what whoever comes later is told.
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/jobs/machine/job_signature.h"
#include "server/jobs/machine/scope.h"
#include "server/jobs/machine/scope_errors.h"

namespace bucketd {

// ---- a pin that is there already

void Scope::Handle(const ScopeLoaded& event) {
  if (stage_ != Stage::kLoading) return;
  const absl::StatusOr<std::optional<Pin>> pin =
      event.memory.ok() ? event.pin : event.memory.status();
  if (!pin.ok()) {
    context_.out.counts.push_back(Tally::kPinUnread);
    context_.Warn(NoteOn(job_, name_, "it is unknown whether there is a pin",
                         {{"error", std::string(pin.status().message())}}));
  }
  if (job_.unplanned.has_value()) {
    if (job_.unplanned_is_stored) AnswerUnplanned();
    return;
  }
  stage_ = Stage::kGathering;
  if (pin.ok() && pin->has_value()) UsePin(**pin);
  if (stage_ != Stage::kGathering || refusal_.ok()) return;
  Fail(refusal_, AgreementOutcome::kFailed, false);
}

void Scope::UsePin(const Pin& pin) {
  std::string signature = SignatureOf(pin.plan_key, pin.profile_as_asked);
  const int64_t bytes = 2 * static_cast<int64_t>(signature.size());  // it stands in the key, too
  if (pin.generation != job_.generation || pin.size != size_) {
    KeepBytes(bytes);
    pin_signature_ = std::move(signature);
    pin_ = pin;
    return;
  }
  // This generation has agreed, before a restart or a long pause. Perhaps all ranks but this one
  // are running with that plan: nobody else will come.
  stage_ = Stage::kAgreed;
  agreed_ = std::make_shared<const Pin>(pin);
  agreed_signature_ = std::move(signature);
  outcome_ = PlanOutcome::kPinned;
  pinned_ = true;
  GiveUpFetches();
  while (!ranks_.none()) {
    const CallId call = ranks_.first_due();
    const WaitingCall waiting = context_.calls.find(call)->second;
    Take(call);
    // Beyond the first few signatures the text is gone; those are not the one that was agreed on,
    // unless the ranks differ in nearly everything.
    AnswerAgreed(call, waiting.ranks, ranks_.presented()[waiting.signature].text);
  }
  Settle();
  KeepBytes(bytes);
}

// ---- ranks that agree

void Scope::StartStoring(Presented& presented) {
  const PlanAnswer& plan = **presented.fetch->result();
  stage_ = Stage::kStoring;
  outcome_ = plan.outcome;
  reply_ = plan.reply;
  agreed_signature_ = presented.text;
  first_call_ = *presented.calls.begin();
  const bool pinned = plan.outcome == PlanOutcome::kPinned;
  agreed_ =
      std::make_shared<const Pin>(Pin{.generation = job_.generation,
                                      .size = size_,
                                      .plan_key = pinned ? pin_->plan_key : presented.request->key,
                                      .profile_as_asked = presented.request->profile_as_asked,
                                      .plan_sha256 = plan.reply->plan_sha256});
  KeepBytes(static_cast<int64_t>(agreed_signature_.size() + agreed_->plan_key.size()));
  GiveUpFetches();
  by_ = presented.request->asker.by;
  complete_ = context_.now;
  context_.Do(StoreAgreed{id_, job_.name, name_, *agreed_, reply_, by_});
}

void Scope::Handle(const AgreedStored& event) {
  if (awaits_pin()) {
    KeptLate(event.standing);
  } else if (stage_ == Stage::kStoring && UseStanding(event.standing)) {
    Agree(event.standing.status());
  }
}

void Scope::StoreAgain() {
  context_.Do(StoreAgreed{id_, job_.name, name_, *agreed_, reply_, by_, true});
}

// The ranks run with the plan, whatever the store says.
void Scope::KeptLate(const absl::StatusOr<StandingPin>& standing) {
  const bool is_otherwise =
      standing.ok() ? standing->pin.plan_sha256 != agreed_->plan_sha256
                    : absl::IsAborted(standing.status()) || absl::IsCancelled(standing.status());
  if (!standing.ok() && !is_otherwise) return;
  awaits_pin_ = false;
  Note note =
      NoteOn(job_, name_,
             is_otherwise ? "another server has kept otherwise what was agreed on without a pin"
                          : "what was agreed on without a pin has one",
             {});
  note.warn = is_otherwise;
  note.call = call_;
  context_.Inform(std::move(note));
  over_ = is_otherwise && doubted_;
  if (is_otherwise) return;
  doubted_ = false;
  pinned_ = true;
  KeepBytes(-static_cast<int64_t>(reply_->response.size()));
  reply_.reset();
}

// During a rolling restart half of the ranks may have come to another server. False: that plan is
// none for these ranks; they have been told.
bool Scope::UseStanding(const absl::StatusOr<StandingPin>& standing) {
  if (absl::IsAborted(standing.status())) {
    Fail(MakeError(Reason::kGenerationOver, standing.status().message()),
         AgreementOutcome::kSuperseded, true);
    return false;
  }
  if (absl::IsCancelled(standing.status())) {
    Fail(AnotherServerWasFirst(), AgreementOutcome::kSuperseded, true);
    return false;
  }
  if (!standing.ok() || standing->pin.plan_sha256 == agreed_->plan_sha256) return true;
  const std::string signature = SignatureOf(standing->pin.plan_key, standing->pin.profile_as_asked);
  std::vector<uint32_t> all(size_);
  std::iota(all.begin(), all.end(), 0U);
  const bool same = SameSignature(signature, agreed_signature_);
  if (!same || !standing->reply.ok()) {
    const std::string presented = std::exchange(agreed_signature_, signature);
    const bool passes = same && !IsLost(standing->reply.status());
    Fail(
        same ? UnreadPlanError(standing->reply.status()) : DiffersAloneError(*this, all, presented),
        passes ? AgreementOutcome::kSuperseded : AgreementOutcome::kDiffer, passes);
    return false;
  }
  context_.Inform(NoteOn(job_, name_, "another server was first with a pin",
                         {{"plan", ToHex(standing->pin.plan_sha256)}}));
  agreed_ = std::make_shared<const Pin>(standing->pin);
  agreed_signature_ = signature;
  reply_ = *standing->reply;
  outcome_ = PlanOutcome::kPinned;
  return true;
}

// Without the store's word a scope agrees on what its ranks hold if they are all here, still: a
// process that was stopped does not know.
bool Scope::MayBeElsewhere(const absl::Status& stored) const {
  if (stored.ok() || context_.limits.taken_over_after.count() == 0) return false;
  if (ReasonOf(stored) == ReasonName(Reason::kQuotaUsedUp)) return false;  // it has spoken
  return ranks_.ranks() < size_ || context_.stopped >= complete_;
}

void Scope::Agree(const absl::Status& stored) {
  if (MayBeElsewhere(stored)) {
    Fail(AnotherServerMayBeFirst(), AgreementOutcome::kSuperseded, true);
    return;
  }
  stage_ = Stage::kAgreed;
  pinned_ = stored.ok();
  job_.last_agreed = name_;
  if (!stored.ok()) {
    awaits_pin_ = ReasonOf(stored) != ReasonName(Reason::kQuotaUsedUp);
    context_.out.counts.push_back(awaits_pin_ ? Tally::kUnpinnedStore : Tally::kUnpinnedQuota);
    context_.Warn(
        NoteOn(job_, name_, "agreed without a pin", {{"error", std::string(stored.message())}}));
  }
  context_.out.counts.push_back(ScopeEnded{AgreementOutcome::kAgreed, seconds()});
  const bool computed = outcome_ == PlanOutcome::kComputed;
  while (!ranks_.none()) {
    const CallId call = ranks_.first_due();
    const PlanOutcome outcome = computed && call != first_call_ ? PlanOutcome::kJoined : outcome_;
    Answer(call, PlanAnswer{outcome, reply_, 0, {}, pinned_});
  }
  Settle();
  // What has no pin is kept as it is, as long as the scope is.
  const int64_t reply_bytes = stored.ok() ? 0 : static_cast<int64_t>(reply_->response.size());
  if (stored.ok()) reply_.reset();
  KeepBytes(2 * static_cast<int64_t>(agreed_signature_.size()) + reply_bytes);
}

void Scope::AnswerAgreed(CallId call, absl::Span<const uint32_t> ranks,
                         absl::string_view signature) {
  const PlanOutcome outcome =
      outcome_ == PlanOutcome::kPinned ? PlanOutcome::kPinned : PlanOutcome::kHit;
  if (doubted_) {
    context_.Tell(call, AnotherServerMayBeFirst());
  } else if (!SameSignature(agreed_signature_, signature)) {
    context_.Tell(call, DiffersAloneError(*this, ranks, signature));
  } else if (reply_ != nullptr) {
    context_.Tell(call, PlanAnswer{outcome, reply_, 0, {}, pinned_});
  } else {
    context_.Do(AnswerFromStore{call, outcome, agreed_, job_.name.second});
  }
}

// ---- and those that do not

void Scope::Fail(const absl::Status& verdict, AgreementOutcome outcome, bool transient) {
  context_.out.counts.push_back(ScopeEnded{outcome, seconds()});
  Note note = NoteOn(job_, name_, "no agreement",
                     {{"ranks", absl::StrCat(ranks_.ranks(), "/", size_)},
                      {"reason", ReasonOf(verdict)},
                      {"error", std::string(verdict.message())}});
  note.warn = outcome == AgreementOutcome::kDiffer || outcome == AgreementOutcome::kMissing;
  note.call = call_;
  context_.Inform(std::move(note));
  Know(ranks_.Present());
  AnswerAll(verdict);
  GiveUpFetches();
  stage_ = Stage::kFailed;
  verdict_ = verdict;
  Settle();
  if (transient || told_.size() == size_) over_ = true;
}

void Scope::AnswerFailed(CallId call, absl::Span<const uint32_t> ranks) {
  context_.Tell(call, verdict_);
  Know(ranks);
  // All know of it: they may try once more, all together.
  if (told_.size() == size_) over_ = true;
}

void Scope::CancelTimers() {
  for (uint64_t* timer : {&deadline_timer_, &compare_timer_}) {
    if (*timer != 0) context_.Do(CancelTimer{std::exchange(*timer, 0)});
  }
}

void Scope::Settle() {
  CancelTimers();
  ranks_.Clear();
  pin_.reset();
  pin_signature_ = std::string();
  KeepBytes(kBytesOfKnown * static_cast<int64_t>(told_.size()) - bytes_);
}

}  // namespace bucketd
