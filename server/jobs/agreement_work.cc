// Agreement: what its workers do. They read and write the store and compare graphs and plans.
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/ir/graph_difference.h"
#include "server/base/log.h"
#include "server/jobs/agreement.h"
#include "server/jobs/machine/scope_errors.h"
#include "server/jobs/pin_records.h"
#include "server/jobs/replan.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

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

}  // namespace

Event Agreement::Work(const LoadScope& load, const absl::Status& busy) {
  if (!busy.ok()) return ScopeLoaded{load.scope, busy, busy};
  const auto& [tenant, job] = load.job;
  Pins::Loaded loaded = parts_.pins.LoadScope(tenant, job, load.name, load.records.get());
  return ScopeLoaded{load.scope, std::move(loaded.job), std::move(loaded.pin)};
}

Event Agreement::Work(const LoadPinAgain& load, const absl::Status& busy) {
  if (!busy.ok()) return PinLoadedAgain{load.scope, busy};
  return PinLoadedAgain{load.scope,
                        parts_.pins.LoadScope(load.job.first, load.job.second, load.name).pin};
}

Event Agreement::Work(const LoadPinnedPlan& load, const absl::Status& busy) {
  if (!busy.ok()) return PinnedPlanCame{load.fetch, busy};
  return PinnedPlanCame{load.fetch, ReadPinnedPlan(load.pin)};
}

absl::StatusOr<PlanReplyPtr> Agreement::ReadPinnedPlan(const Pin& pin) {
  if (PlanReplyPtr cached = parts_.cache.Get(pin.plan_key);
      cached != nullptr && cached->plan_sha256 == pin.plan_sha256) {
    return cached;
  }
  ASSIGN_OR_RETURN(std::string plan, parts_.pins.LoadPlan(pin));
  PlanReplyPtr reply = EncodePlanReply(std::move(plan), pin.plan_key);
  parts_.cache.Put(pin.plan_key, reply);
  return reply;
}

Agreement::Answer Agreement::PinnedAnswer(const AnswerFromStore& answer) {
  const absl::StatusOr<PlanReplyPtr> reply = ReadPinnedPlan(*answer.pin);
  if (reply.ok()) return PlanAnswer{answer.outcome, *reply, 0, {}};
  parts_.metrics.tally(IsLost(reply.status()) ? Tally::kPinLost : Tally::kPinUnread).Increment();
  LogLine(spdlog::level::err, "the plan that a job runs with was not read",
          {{"job", answer.job}, {"error", std::string(reply.status().message())}});
  return UnreadPlanError(reply.status());
}

absl::StatusOr<JobMemory> Agreement::MemoryOf(const JobName& name, uint64_t generation,
                                              ScopeId scope) {
  const absl::MutexLock lock(&mutex_);
  return table_.MemoryOf(name, generation, scope);
}

absl::StatusOr<std::optional<JobMemory>> Agreement::WriteUnplanned(const JobName& name,
                                                                   const JobMemory& memory) {
  JobMemory unplanned = memory;
  // Other servers of the store may have been told meanwhile. Where it cannot be read, what was
  // known last holds.
  parts_.planning.Look().IgnoreError();
  unplanned.unplanned = parts_.planning.WhyDisabled();
  if (!unplanned.unplanned.has_value()) return std::nullopt;
  ASSIGN_OR_RETURN(JobMemory stands,
                   parts_.pins.PutJob(name.first, name.second, unplanned, ServerItself()));
  // Another server may have kept a plan for this generation: then it has one.
  if (!stands.unplanned.has_value()) return std::nullopt;
  return std::optional<JobMemory>(std::move(stands));
}

absl::StatusOr<std::optional<JobMemory>> Agreement::WriteMemory(const StoreUnplanned& store) {
  ASSIGN_OR_RETURN(const JobMemory memory, MemoryOf(store.job, store.generation));
  ASSIGN_OR_RETURN(JobMemory stands,
                   parts_.pins.PutJob(store.job.first, store.job.second, memory, ServerItself()));
  if (Holds(memory, stands)) return std::nullopt;
  return std::optional<JobMemory>(std::move(stands));
}

// Known or not: it is told once the store has been asked to know it.
Event Agreement::Work(const StoreUnplanned& store, const absl::Status& busy) {
  if (!busy.ok()) return UnplannedStored{store.job, store.generation};
  const absl::MutexLock storing(&storing_.Of(store.job.first));
  CrashPoint("unplanned: to be kept");
  absl::StatusOr<std::optional<JobMemory>> elsewhere = WriteMemory(store);
  CrashPoint("unplanned: kept");
  if (elsewhere.ok()) return UnplannedStored{store.job, store.generation, *std::move(elsewhere)};
  LogLine(spdlog::level::warn, "unplanned, and the store does not know",
          {{"job", store.job.second}, {"error", std::string(elsewhere.status().message())}});
  return UnplannedStored{store.job, store.generation};
}

absl::StatusOr<Agreed> Agreement::WriteGeneration(const StoreAgreed& store) {
  ASSIGN_OR_RETURN(const JobMemory memory, MemoryOf(store.job, store.pin.generation, store.scope));
  Agreeing what{.job = store.job,
                .scope = store.name,
                .memory = memory,
                .pin = store.pin,
                .plan = PlanBytesOf(*store.reply),
                .unless_planning_is_off = false,
                .by = store.by};
  what.memory.last_scope = store.name;
  // No plan has been kept for this generation yet: it may still have none.
  if (memory.last_scope.empty()) {
    what.unless_planning_is_off = !parts_.planning.WhyDisabled().has_value();
    if (what.unless_planning_is_off) {
      absl::StatusOr<Agreed> agreed = parts_.pins.Agree(what);
      if (!agreed.ok() || !agreed->planning_is_off) return agreed;
      what.unless_planning_is_off = false;
    }
    ASSIGN_OR_RETURN(std::optional<JobMemory> unplanned, WriteUnplanned(store.job, memory));
    if (unplanned.has_value()) return Agreed{false, std::move(unplanned), {}};
  }
  return parts_.pins.Agree(what);
}

// Refused if a later generation has begun, whose pins stand then.
absl::StatusOr<StandingPin> Agreement::WriteAgreed(const StoreAgreed& store,
                                                   std::optional<JobMemory>& elsewhere) {
  const auto& [tenant, job] = store.job;
  const absl::MutexLock storing(&storing_.Of(tenant));
  ASSIGN_OR_RETURN(Agreed agreed, WriteGeneration(store));
  if (agreed.pin.has_value()) return StandingPin{*std::move(agreed.pin), store.reply};
  elsewhere = std::move(agreed.elsewhere);
  ASSIGN_OR_RETURN(const std::optional<Pin> pin,
                   parts_.pins.LoadScope(tenant, job, store.name).pin);
  if (pin.has_value() && pin->generation == store.pin.generation && pin->size == store.pin.size) {
    return StandingPin{*pin, store.reply};
  }
  return absl::CancelledError("made otherwise than this generation is");
}

Event Agreement::Work(const StoreAgreed& store, const absl::Status& busy) {
  if (!busy.ok()) return AgreedStored{store.scope, busy};
  std::optional<JobMemory> elsewhere;
  absl::StatusOr<StandingPin> standing = WriteAgreed(store, elsewhere);
  if (standing.ok() && standing->pin.plan_sha256 != store.pin.plan_sha256) {
    standing->reply = ReadPinnedPlan(standing->pin);
  }
  return AgreedStored{store.scope, std::move(standing), std::move(elsewhere)};
}

Event Agreement::Work(const WeighPlans& weigh, const absl::Status& busy) {
  if (!busy.ok()) return PlansWeighed{weigh.fetch, weigh.fresh, busy};
  return PlansWeighed{
      weigh.fetch, weigh.fresh,
      JudgeReplan(*weigh.graph, PlanBytesOf(*weigh.pinned), PlanBytesOf(*weigh.fresh.reply),
                  *weigh.request, parts_.options.costs.replan_gain_ppm)};
}

Event Agreement::Work(const CompareGraphs& compare, const absl::Status& busy) {
  DifferenceSought none{compare.scope, compare.number, "", ""};
  if (!busy.ok()) return none;
  const GraphPtr a = parts_.graphs.Get(compare.graph_keys[0]);
  const GraphPtr b = parts_.graphs.Get(compare.graph_keys[1]);
  if (a == nullptr || b == nullptr) return none;  // evicted
  const GraphDifference difference = FirstDifference(*a, *b);
  if (difference.node == kNoNode) return none;
  return DifferenceSought{compare.scope, compare.number, Describe(difference, *a, *b),
                          absl::StrCat(difference.node)};
}

Event Agreement::Work(const DecodeGraph& decode, const absl::Status& busy) {
  if (busy.ok()) {
    absl::StatusOr<GraphPtr> decoded = parts_.intake.ReadInline(*decode.graph, decode.digest);
    if (decoded.ok()) parts_.broker.GraphArrived(decode.graph_key, *std::move(decoded));
  }
  return GraphDecoded{decode.scope, decode.signature};
}

}  // namespace bucketd
