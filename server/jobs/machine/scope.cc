// Scope: callers that come, wait and leave.
#include "server/jobs/machine/scope.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/jobs/machine/job_signature.h"
#include "server/jobs/machine/scope_errors.h"

namespace bucketd {
namespace {

// Of how many signatures the text and the request are kept; the others are known by their hash.
constexpr size_t kKeptSignatures = 8;
constexpr size_t kNamedAway = 8;

// To answer many takes longer.
constexpr std::chrono::microseconds kMarginOfRank{100};

}  // namespace

Scope::Scope(MachineContext& context, Job& job, ScopeId id, const JobCall& first,
             const CallIds& call)
    : context_(context),
      job_(job),
      id_(id),
      name_(first.scope),
      size_(first.size),
      since_(context.now),
      call_(call),
      ranks_(context) {
  context_.Do(LoadScope{id_, job_.name, name_, first.records});
}

void Scope::Handle(RankCame& event) {
  switch (stage_) {
    case Stage::kAgreed:
      AnswerAgreed(event.call, event.job.ranks, event.signature);
      return;
    case Stage::kFailed:
      AnswerFailed(event.call, event.job.ranks);
      return;
    case Stage::kStoring:
    case Stage::kLoading:
    case Stage::kGathering:
    case Stage::kComparing:
      break;
  }
  const absl::Status fits = CheckFits(event);
  if (!fits.ok()) {
    context_.Tell(event.call, fits);
    return;
  }
  absl::Status room = CheckRoom();
  if (room.ok()) room = CheckSignatures(event);
  if (room.ok()) {
    Wait(event);
  } else {
    TurnAway(event, room);
  }
}

void Scope::Handle(const RankRefused& event) {
  if (stage_ == Stage::kStoring || stage_ == Stage::kAgreed) {
    context_.Tell(event.call, event.why);
    return;
  }
  if (stage_ == Stage::kFailed) {
    AnswerFailed(event.call, event.job.ranks);
    return;
  }
  // Whoever it is, the rank waits with a call that can be served.
  if (std::any_of(event.job.ranks.begin(), event.job.ranks.end(),
                  [&](uint32_t rank) { return ranks_.has(rank); })) {
    context_.Tell(event.call, event.why);
    return;
  }
  if (refusal_.ok()) refusal_ = RefusedError(*this, event.job.ranks, event.why);
  context_.Tell(event.call, refusal_);
  Know(event.job.ranks);
  if (stage_ == Stage::kLoading) return;  // the others may have a pin of this generation
  Fail(refusal_, AgreementOutcome::kFailed, false);
}

bool Scope::WouldWait(const RankCame& event) const {
  return stage_ < Stage::kAgreed && CheckFits(event).ok() && CheckSignatures(event).ok();
}

absl::Status Scope::CheckRoom() const {
  const int64_t limit = context_.limits.max_waiting_ranks;
  if (static_cast<int64_t>(context_.calls.size()) >= limit) {
    return MakeError(Reason::kOverloaded, "too many ranks wait for each other", {.limit = limit});
  }
  return absl::OkStatus();
}

absl::Status Scope::CheckSignatures(const RankCame& event) const {
  // Each rank may change its mind once; signatures that nobody presents any more stay in the table.
  const size_t most = size_t{2} * size_ + kKeptSignatures;
  if (ranks_.presented().size() < most || ranks_.knows(event.signature_id)) {
    return absl::OkStatus();
  }
  return MakeError(Reason::kJobInvalid,
                   absl::StrCat("the ranks of scope ", name_, " have presented ", most,
                                " different graphs or options"),
                   {.limit = static_cast<int64_t>(most)});
}

void Scope::TurnAway(const RankCame& event, const absl::Status& why) {
  FoundNoRoom(event.job.ranks);
  context_.Tell(event.call, why);
  // Nobody has waited yet, and no deadline would end it.
  if (is_deserted() && refusal_.ok() && deadline_timer_ == 0) over_ = true;
}

void Scope::GiveWay(CallId call, const absl::Status& why) {
  FoundNoRoom(context_.calls.find(call)->second.ranks);
  Answer(call, why);
}

void Scope::FoundNoRoom(absl::Span<const uint32_t> ranks) {
  for (const uint32_t rank : ranks) {
    const bool named = std::count(turned_away_.begin(), turned_away_.end(), rank) != 0;
    if (turned_away_.size() < kNamedAway && !named) turned_away_.push_back(rank);
  }
}

void Scope::Know(absl::Span<const uint32_t> ranks) {
  const auto before = static_cast<int64_t>(told_.size());
  told_.insert(ranks.begin(), ranks.end());
  KeepBytes(kBytesOfKnown * (static_cast<int64_t>(told_.size()) - before));
}

void Scope::Wait(RankCame& event) {
  Presented& presented = ranks_.Of(event.signature_id, event.request->digest, event.job.fresh);
  ranks_.Add(event.call, *this, presented, event.job,
             AnswerBy(context_.now, event.deadline, kAnswerMargin + size_ * kMarginOfRank));
  context_.job_places.Wait(job_);
  ArmDeadline();
  KeepRequest(presented, event);
}

absl::Status Scope::CheckFits(const RankCame& event) const {
  if (stage_ == Stage::kStoring && !SameSignature(agreed_signature_, event.signature)) {
    return DiffersAloneError(*this, event.job.ranks, event.signature);
  }
  return CheckRepeated(event);
}

// A call that was cut off and is repeated presents the same. Of two that do not, the first stays:
// no later one can take a rank's place from it.
absl::Status Scope::CheckRepeated(const RankCame& event) const {
  for (const uint32_t rank : event.job.ranks) {
    const Presented* waits = ranks_.Of(rank);
    if (waits == nullptr || waits->signature_id == event.signature_id) continue;
    return MakeError(Reason::kJobInvalid,
                     absl::StrCat("rank ", rank, " of scope ", name_,
                                  " is waiting already, with another graph or other options than "
                                  "this call presents: are there two of it?"));
  }
  return absl::OkStatus();
}

void Scope::KeepRequest(Presented& presented, RankCame& event) {
  const bool kept = presented.request != nullptr;
  const bool with_graph = event.request->graph != nullptr;
  if (kept && !with_graph) return;
  if (!kept) {
    if (presented.index >= kKeptSignatures && ranks_.signatures() > 1) return;
    // The text stands in the request's key too.
    KeepBytes(static_cast<int64_t>(2 * event.signature.size()));
    presented.text = std::move(event.signature);
  }
  if (with_graph) {
    CameWithGraph(presented, event);
  } else {
    presented.request = std::move(event.request);
  }
}

void Scope::CameWithGraph(Presented& presented, RankCame& event) {
  if (stage_ == Stage::kComparing) {
    DecodeToCompare(presented, event);
    if (presented.request == nullptr) presented.request = std::move(event.request);
    return;
  }
  // One is enough: ten thousand ranks may all send theirs.
  if (presented.has_plan() || presented.inline_sender != 0) return;
  presented.GiveUpFetch();
  presented.request = std::move(event.request);
  presented.inline_sender = event.call;
}

void Scope::Handle(const CallerLeft& event) {
  Answer(event.call, CallerGone());
  if (is_deserted()) {
    over_ = true;
  } else if (undecided() && context_.draining) {
    Fail(DrainingError(), AgreementOutcome::kSuperseded, true);
  }
}

void Scope::Handle(const DrainBegan&) {
  const bool complete = ranks_.ranks() == size_;
  if (!undecided() || ranks_.none() || complete) return;
  Fail(DrainingError(), AgreementOutcome::kSuperseded, true);
}

void Scope::Take(CallId call) {
  ranks_.Take(call);
  context_.job_places.Answered(job_);
}

void Scope::Answer(CallId call, absl::StatusOr<PlanAnswer> answer) {
  Take(call);
  context_.Tell(call, std::move(answer));
}

void Scope::AnswerAll(const absl::StatusOr<PlanAnswer>& answer) {
  while (!ranks_.none()) Answer(ranks_.first_due(), answer);
}

void Scope::KeepBytes(int64_t bytes) {
  bytes_ += bytes;
  context_.job_places.Keep(job_, bytes);
}

void Scope::AnswerUnplanned() {
  AnswerAll(PlanAnswer{PlanOutcome::kUnplanned, nullptr, 0, *job_.unplanned});
  over_ = true;
}

void Scope::Supersede(const absl::Status& over) {
  if (!ranks_.none()) Fail(over, AgreementOutcome::kSuperseded, true);
  over_ = true;
}

void Scope::Close() {
  GiveUpFetches();
  CancelTimers();
  KeepBytes(-bytes_);
}

void Scope::Step() {
  if (over_) return;
  if (stage_ == Stage::kComparing && !StillDiffer()) stage_ = Stage::kGathering;
  if (stage_ == Stage::kGathering) Gather();
  if (stage_ == Stage::kComparing) Compare();
}

}  // namespace bucketd
