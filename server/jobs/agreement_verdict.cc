// Agreement: how a scope ends.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/ir/graph_difference.h"
#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/jobs/agreement.h"
#include "server/jobs/job_signature.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kMaxCompare{10};
constexpr std::chrono::milliseconds kGraceAtDeadline{20};

double SecondsSince(SteadyTime since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

std::string Describe(const GraphDifference& difference, const Graph& a, const Graph& b) {
  const auto op = [&](const Graph& graph) {
    if (difference.node >= graph.size()) return std::string("no such node");
    const absl::string_view name = graph.op(difference.node);
    return name.empty() ? std::string(Name(graph.kind(difference.node))) : std::string(name);
  };
  const std::string op_a = op(a), op_b = op(b);
  return absl::StrCat(
      "node ", difference.node, " (", op_a == op_b ? op_a : absl::StrCat(op_a, " against ", op_b),
      "): ", difference.field, " is ", difference.first, " against ", difference.second);
}

absl::Status LostPlanError() {
  return MakeError(
      Reason::kGenerationOver,
      "the plan that this generation agreed on is lost; a new generation of the job gets "
      "a new one");
}

}  // namespace

// ---- ranks that differ

void Agreement::StartComparing(ScopeState& scope, Actions& actions) {
  scope.stage = ScopeStage::kComparing;
  std::vector<const Presented*> known;
  for (const Presented& presented : scope.presented) {
    if (!presented.calls.empty() && presented.request != nullptr) known.push_back(&presented);
  }
  std::stable_sort(known.begin(), known.end(),
                   [](const Presented* a, const Presented* b) { return a->live > b->live; });
  const auto other =
      known.empty() ? known.end()
                    : std::find_if(known.begin(), known.end(), [&](const Presented* presented) {
                        return presented->graph != known[0]->graph;
                      });
  if (other == known.end()) {
    Differ(scope, "", "", actions);
    return;
  }
  // The odd one out is named first.
  scope.compared = {(*other)->index, known[0]->index};
  for (const size_t index : scope.compared) scope.presented[index].asked_to_compare = false;
  const SteadyTime now = Clock::now();
  const Clock::duration left = scope.deadlines.begin()->first - now;
  scope.compare_timer =
      parts_.timers.Schedule(now + std::min<Clock::duration>(kMaxCompare, left / 2),
                             [this, id = scope.id] { CompareTimedOut(id); });
  CompareStep(scope, actions);
}

void Agreement::CompareTimedOut(uint64_t scope_id) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    if (scope == nullptr || scope->stage != ScopeStage::kComparing) return;
    Differ(*scope, "", "", actions);
  }
  Run(std::move(actions));
}

void Agreement::CompareStep(ScopeState& scope, Actions& actions) {
  if (scope.difference_is_sought) return;
  bool all_here = true;
  for (const size_t index : scope.compared) {
    const Coming coming = GraphToCompare(scope, scope.presented[index], actions);
    if (coming == Coming::kNever) {
      Differ(scope, "", "", actions);
      return;
    }
    all_here &= coming == Coming::kHere;
  }
  if (all_here) SeekDifference(scope, actions);
}

Agreement::Coming Agreement::GraphToCompare(ScopeState& scope, Presented& presented,
                                            Actions& actions) {
  if (parts_.graphs.Contains(presented.request->graph_key)) return Coming::kHere;
  if (presented.probe != 0 || presented.decoding) return Coming::kComing;
  if (!presented.asked_to_compare) {
    AskForGraph(presented, parts_.options.upload_lease.count(), actions);
    return presented.asked_to_compare ? Coming::kComing : Coming::kNever;
  }
  // Back, and without a graph.
  const bool back = std::all_of(presented.asked.begin(), presented.asked.end(),
                                [&](uint32_t rank) { return scope.live.contains(rank); });
  return back ? Coming::kNever : Coming::kComing;
}

void Agreement::DecodeToCompare(ScopeState& scope, Presented& presented,
                                std::shared_ptr<const InlineGraph> graph, Actions& actions) {
  const bool compared =
      presented.index == scope.compared[0] || presented.index == scope.compared[1];
  if (!compared || presented.decoding) return;
  presented.decoding = true;
  const auto done = [this, id = scope.id, index = presented.index] { DecodedToCompare(id, index); };
  actions.work.push_back({.run =
                              [this, done, graph = std::move(graph), digest = presented.graph,
                               key = presented.request->graph_key] {
                                absl::StatusOr<GraphPtr> decoded =
                                    parts_.intake.ReadInline(*graph, digest);
                                if (decoded.ok())
                                  parts_.broker.GraphArrived(key, *std::move(decoded));
                                done();
                              },
                          .refused = done});
}

void Agreement::DecodedToCompare(uint64_t scope_id, size_t index) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    if (scope == nullptr || scope->stage != ScopeStage::kComparing) return;
    scope->presented[index].decoding = false;
    CompareStep(*scope, actions);
  }
  Run(std::move(actions));
}

void Agreement::SeekDifference(ScopeState& scope, Actions& actions) {
  scope.difference_is_sought = true;
  const auto key = [&](size_t i) { return scope.presented[scope.compared[i]].request->graph_key; };
  const auto run = [this, id = scope.id, first = key(0), second = key(1)] {
    const GraphPtr a = parts_.graphs.Get(first), b = parts_.graphs.Get(second);
    if (a == nullptr || b == nullptr) return DifferenceFound(id, "", "");  // evicted
    const GraphDifference difference = FirstDifference(*a, *b);
    if (difference.node == kNoNode) return DifferenceFound(id, "", "");
    return DifferenceFound(id, Describe(difference, *a, *b), absl::StrCat(difference.node));
  };
  actions.work.push_back(
      {.run = run, .refused = [this, id = scope.id] { DifferenceFound(id, "", ""); }});
}

void Agreement::DifferenceFound(uint64_t scope_id, const std::string& text,
                                const std::string& node) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    if (scope == nullptr || scope->stage != ScopeStage::kComparing) return;
    Differ(*scope, text, node, actions);
  }
  Run(std::move(actions));
}

void Agreement::Differ(ScopeState& scope, absl::string_view difference, absl::string_view node,
                       Actions& actions) {
  Fail(scope, DifferError(scope, difference, node), AgreementOutcome::kDiffer, false, actions);
}

// ---- ranks that are missing

void Agreement::FailAtDeadline(ScopeState& scope, Actions& actions) {
  if (scope.job->unplanned.has_value()) {
    AnswerUnplanned(scope, actions);
    return;
  }
  if (scope.stage == ScopeStage::kStoring) {
    // What is agreed stays agreed; whoever calls again gets it.
    const absl::Status late =
        MakeError(Reason::kDeadline, "the plan is agreed on and being stored; ask again");
    AnswerAll(scope, late, actions);
    return;
  }
  if (scope.stage == ScopeStage::kComparing) {
    Differ(scope, "", "", actions);
    return;
  }
  if (scope.live_signatures > 1) {
    Differ(scope, "", "", actions);
    return;
  }
  if (scope.live.size() < scope.size) {
    if (scope.pin_read_again) {
      Fail(scope, MissingError(scope), AgreementOutcome::kMissing, false, actions);
    } else {
      scope.pin_read_again = true;
      ReadPinAgain(scope, actions);
    }
    return;
  }
  Presented& agreed = scope.presented[calls_.find(scope.live.begin()->second)->second.signature];
  if (GiveUpReplan(scope, agreed, actions)) {
    Gather(scope, actions);
    return;
  }
  if (agreed.broker_call != 0 && !scope.expired) {
    scope.expired = true;  // the broker knows what it was waiting for, and says so to all
    // Unless it has just said something else, and that was no answer.
    scope.deadline_timer_at = Clock::now() + kGraceAtDeadline;
    scope.deadline_timer = parts_.timers.Schedule(scope.deadline_timer_at,
                                                  [this, id = scope.id] { DeadlineReached(id); });
    actions.calls.push_back(
        [this, call = agreed.broker_call] { parts_.broker.DeadlineReached(call); });
    return;
  }
  const absl::Status late =
      !agreed.last_error.ok()
          ? agreed.last_error
          : MakeError(Reason::kDeadline,
                      absl::StrFormat("all %d ranks of scope %s agree; their plan was not there "
                                      "%.1f s after the first of them",
                                      scope.size, scope.name, SecondsSince(scope.since)));
  Fail(scope, late, AgreementOutcome::kFailed, true, actions);
}

// The missing ranks may have agreed at another server that has the store open.
void Agreement::ReadPinAgain(const ScopeState& scope, Actions& actions) {
  actions.work.push_back(
      {.run =
           [this, id = scope.id, job = scope.job->name, name = scope.name] {
             PinReadAgain(id, parts_.pins.LoadPin(job.first, job.second, name));
           },
       .refused =
           [this, id = scope.id] {
             PinReadAgain(id, absl::UnavailableError("too much is waiting for the store"));
           }});
}

void Agreement::PinReadAgain(uint64_t scope_id, const PinRead& pin) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    if (scope == nullptr || scope->stage != ScopeStage::kGathering) return;
    if (pin.ok() && pin->has_value() && (*pin)->generation == scope->job->generation) {
      UsePin(*scope, **pin, actions);
    }
    if (scope->stage == ScopeStage::kGathering) AtDeadline(*scope, actions);
  }
  Run(std::move(actions));
}

void Agreement::Fail(ScopeState& scope, const absl::Status& verdict, AgreementOutcome outcome,
                     bool transient, Actions& actions) {
  parts_.metrics.agreements(outcome).Increment();
  parts_.metrics.seconds.Observe(SecondsSince(scope.since));
  const bool of_note =
      outcome == AgreementOutcome::kDiffer || outcome == AgreementOutcome::kMissing;
  std::vector<LogField> about = {{"tenant", scope.job->name.first},
                                 {"job", scope.job->name.second},
                                 {"generation", absl::StrCat(scope.job->generation), true},
                                 {"scope", scope.name},
                                 {"ranks", absl::StrCat(scope.live.size(), "/", scope.size)},
                                 {"reason", ReasonOf(verdict)},
                                 {"error", std::string(verdict.message())}};
  actions.calls.push_back([of_note, about = std::move(about), call = scope.call] {
    const WorkFor names(call);
    LogLine(of_note ? spdlog::level::warn : spdlog::level::info, "no agreement", about);
  });
  for (const auto& [rank, call] : scope.live) scope.told.insert(rank);
  AnswerAll(scope, verdict, actions);
  for (Presented& presented : scope.presented) CancelProbe(presented, actions);
  scope.stage = ScopeStage::kFailed;
  scope.verdict = verdict;
  Settle(scope);
  if (transient || scope.told.size() == scope.size) EraseScope(scope);
}

void Agreement::AnswerFailed(ScopeState& scope, absl::Span<const uint32_t> ranks, Done done,
                             Actions& actions) {
  actions.answers.emplace_back(std::move(done), scope.verdict);
  scope.told.insert(ranks.begin(), ranks.end());
  // All know of it: they may try once more, all together.
  if (scope.told.size() == scope.size) EraseScope(scope);
}

void Agreement::Settle(ScopeState& scope) {
  parts_.timers.Cancel(scope.deadline_timer);
  parts_.timers.Cancel(scope.compare_timer);
  scope.deadline_timer = scope.compare_timer = 0;
  scope.live = {};
  scope.presented.clear();
  scope.presented.shrink_to_fit();
  scope.by_signature = {};
  scope.live_signatures = 0;
  KeepBytes(scope, -scope.bytes);
}

// ---- ranks that agree

void Agreement::StartStoring(ScopeState& scope, Presented& presented, Actions& actions) {
  const PlanAnswer& plan = **presented.result;
  scope.stage = ScopeStage::kStoring;
  scope.outcome = plan.outcome;
  scope.reply = plan.reply;
  scope.agreed_signature = presented.text;
  scope.first_call = *presented.calls.begin();
  const bool pinned = plan.outcome == PlanOutcome::kPinned;
  scope.agreed = {.generation = scope.job->generation,
                  .size = scope.size,
                  .plan_key = pinned ? scope.pin->plan_key : presented.request->key,
                  .profile_as_asked = presented.request->profile_as_asked,
                  .plan_sha256 = plan.reply->plan_sha256};
  KeepBytes(scope,
            static_cast<int64_t>(scope.agreed_signature.size() + scope.agreed.plan_key.size()));
  for (Presented& other : scope.presented) CancelProbe(other, actions);
  actions.work.push_back(
      {.run = [this, id = scope.id, job = scope.job->name, name = scope.name, pin = scope.agreed,
               reply = scope.reply] { Stored(id, StoreAgreed(job, name, pin, reply)); },
       .refused =
           [this, id = scope.id] {
             Stored(id, absl::UnavailableError("too much is waiting for the store"));
           }});
}

// The job's memory first: it is refused if a later generation has begun, whose pins stand then.
absl::StatusOr<Agreement::Standing> Agreement::StoreAgreed(const JobName& job,
                                                           const std::string& scope, const Pin& pin,
                                                           const PlanReplyPtr& reply) {
  Standing standing{pin, reply};
  {
    const std::lock_guard storing(storing_);
    RETURN_IF_ERROR(PutMemory(job, pin.generation, scope));
    ASSIGN_OR_RETURN(standing.pin,
                     parts_.pins.PutPin(job.first, job.second, scope, pin, PlanBytesOf(*reply)));
  }
  if (standing.pin.plan_sha256 == pin.plan_sha256) return standing;
  const absl::StatusOr<PlanReplyPtr> other = ReadPinnedPlan(standing.pin);
  standing.reply = other.ok() ? *other : nullptr;
  return standing;
}

// During a rolling restart half of the ranks may have come to another server.
bool Agreement::UseStanding(ScopeState& scope, const absl::StatusOr<Standing>& standing,
                            Actions& actions) {
  if (absl::IsAborted(standing.status())) {
    Fail(scope, MakeError(Reason::kGenerationOver, standing.status().message()),
         AgreementOutcome::kSuperseded, true, actions);
    return false;
  }
  if (!standing.ok() || standing->pin.plan_sha256 == scope.agreed.plan_sha256) return true;
  const std::string signature = SignatureOf(standing->pin.plan_key, standing->pin.profile_as_asked);
  std::vector<uint32_t> all(scope.size);
  std::iota(all.begin(), all.end(), 0U);
  const bool same = SameSignature(signature, scope.agreed_signature);
  if (!same || standing->reply == nullptr) {
    const std::string presented = std::exchange(scope.agreed_signature, signature);
    Fail(scope, same ? LostPlanError() : DiffersAloneError(scope, all, presented),
         AgreementOutcome::kDiffer, false, actions);
    return false;
  }
  LogLine(spdlog::level::info, "another server was first with a pin",
          {{"tenant", scope.job->name.first},
           {"job", scope.job->name.second},
           {"scope", scope.name},
           {"plan", ToHex(standing->pin.plan_sha256)}});
  scope.agreed = standing->pin;
  scope.agreed_signature = signature;
  scope.reply = standing->reply;
  scope.outcome = PlanOutcome::kPinned;
  return true;
}

void Agreement::Stored(uint64_t scope_id, const absl::StatusOr<Standing>& standing) {
  const absl::Status& status = standing.status();
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* found = Find(scope_id);
    if (found == nullptr) return;
    ScopeState& scope = *found;
    if (UseStanding(scope, standing, actions)) Agreed(scope, status, actions);
  }
  Run(std::move(actions));
}

void Agreement::Agreed(ScopeState& scope, const absl::Status& status, Actions& actions) {
  scope.stage = ScopeStage::kAgreed;
  scope.pinned = status.ok();
  scope.job->last_agreed = scope.name;
  if (!status.ok()) {
    const bool quota = absl::IsFailedPrecondition(status);
    (quota ? parts_.metrics.unpinned_quota : parts_.metrics.unpinned_store).Increment();
    LogLine(spdlog::level::warn, "agreed without a pin",
            {{"tenant", scope.job->name.first},
             {"job", scope.job->name.second},
             {"scope", scope.name},
             {"error", std::string(status.message())}});
  }
  parts_.metrics.agreements(AgreementOutcome::kAgreed).Increment();
  parts_.metrics.seconds.Observe(SecondsSince(scope.since));
  const bool computed = scope.outcome == PlanOutcome::kComputed;
  while (!scope.deadlines.empty()) {
    const CallId call = scope.deadlines.begin()->second;
    const PlanOutcome outcome =
        computed && call != scope.first_call ? PlanOutcome::kJoined : scope.outcome;
    Remove(call, PlanAnswer{outcome, scope.reply, 0, {}}, actions);
  }
  const auto signature_bytes = static_cast<int64_t>(scope.agreed_signature.size());
  Settle(scope);
  // What has no pin is kept as it is, as long as the scope is.
  const int64_t reply_bytes = status.ok() ? 0 : static_cast<int64_t>(scope.reply->response.size());
  if (status.ok()) scope.reply.reset();
  KeepBytes(scope, 2 * signature_bytes + reply_bytes);
}

void Agreement::AnswerAgreed(const ScopeState& scope, absl::Span<const uint32_t> ranks,
                             absl::string_view signature, Done done, Actions& actions) {
  if (!SameSignature(scope.agreed_signature, signature)) {
    actions.answers.emplace_back(std::move(done), DiffersAloneError(scope, ranks, signature));
    return;
  }
  const PlanOutcome outcome =
      scope.outcome == PlanOutcome::kPinned ? PlanOutcome::kPinned : PlanOutcome::kHit;
  if (scope.reply != nullptr) {
    actions.answers.emplace_back(std::move(done), PlanAnswer{outcome, scope.reply, 0, {}});
    return;
  }
  actions.work.push_back(
      {.run =
           [this, done, outcome, pin = scope.agreed, job = scope.job->name.second] {
             const absl::StatusOr<PlanReplyPtr> reply = ReadPinnedPlan(pin);
             if (reply.ok()) {
               done(PlanAnswer{outcome, *reply, 0, {}});
               return;
             }
             parts_.metrics.pins_lost.Increment();
             LogLine(spdlog::level::err, "the plan that a job runs with is lost",
                     {{"job", job}, {"error", std::string(reply.status().message())}});
             done(LostPlanError());
           },
       .refused =
           [done] { done(MakeError(Reason::kOverloaded, "too much is waiting for the store")); }});
}

absl::StatusOr<PlanReplyPtr> Agreement::ReadPinnedPlan(const Pin& pin) {
  if (PlanReplyPtr cached = parts_.cache.Get(pin.plan_key);
      cached != nullptr && cached->plan_sha256 == pin.plan_sha256) {
    return cached;
  }
  ASSIGN_OR_RETURN(std::string plan, parts_.pins.LoadPlan(pin));
  PlanReplyPtr reply = EncodePlanReply(std::move(plan));
  parts_.cache.Put(pin.plan_key, reply);
  return reply;
}

}  // namespace bucketd
