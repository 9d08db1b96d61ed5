#include "passes/planner.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/cancellation.h"
#include "passes/base/status_macros.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/fit_memory.h"
#include "passes/pass/numerics.h"
#include "passes/pass/option_table.h"
#include "passes/pass/pass.h"
#include "passes/pass/units/sum_bits.h"
#include "passes/plan/verify.h"
#include "passes/sim/bucket_costs.h"
#include "passes/sim/simulator.h"

namespace bucketd {

void Predict(const Graph& graph, const Costs& costs, Plan& plan) {
  const Simulation simulation = Simulate(graph, plan, costs);
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    Bucket& bucket = plan.buckets[b];
    bucket.start_ps = simulation.bucket_wire[b].start_ps;
    bucket.end_ps = simulation.bucket_wire[b].end_ps;
    // Copies in line with the collective hold its stream, and nothing of them is on the wire.
    const internal::BucketCosts parts = internal::CostsOf(graph, bucket, costs);
    if (!parts.copies_on_comm) continue;
    bucket.start_ps += parts.copy_in_ps;
    bucket.end_ps -= parts.copy_out_ps;
  }
  plan.prediction = simulation.prediction;
}

namespace {

// A mode that found nothing to move has not looked at what memory that takes.
absl::Status CheckLimitInBytes(const PassContext& context, Plan& plan) {
  const PlanOptions& options = context.options;
  const bool may_move =
      !context.graph.collectives().empty() && !FindMode(options.mode)->passes.empty();
  if (options.memory_limit_bytes == 0 || !may_move) return absl::OkStatus();
  return CheckMemory(context, plan.prediction.peak_bytes,
                     "the plan needs $0 bytes at its peak, the limit is $1 (program order needs "
                     "$2): allow more memory",
                     plan);
}

absl::StatusOr<Plan> Make(const Graph& graph, const Costs& costs, const PlanOptions& options,
                          const AfterPass& after) {
  RETURN_IF_ERROR(options.Validate());
  Plan plan = ProgramOrder(graph);
  PassContext context(graph, costs, options);
  // Also refuses a graph whose own order is not legal.
  RETURN_IF_ERROR(VerifyPlan(graph, plan));
  context.program_order = Simulate(graph, plan, costs).prediction;
  if (!graph.collectives().empty()) {
    ASSIGN_OR_RETURN(const Pipeline pipeline, MakePipeline(FindMode(options.mode)->passes));
    RETURN_IF_ERROR(pipeline.Run(context, plan, after));
    ReportSums(context, plan);
  }
  for (std::string& text : UnreadOptions(options)) {
    plan.diagnostics.push_back({"option-unread", std::move(text), {}});
  }
  Predict(graph, costs, plan);
  RETURN_IF_ERROR(CheckLimitInBytes(context, plan));
  plan.program_order = context.program_order;
  plan.lower_bound_ps = LowerBoundPs(graph, costs);
  plan.numerics = options.numerics;
  plan.backend = options.backend;
  plan.mode = options.mode;
  SayWhoseBits(context, plan);
  plan.planner = absl::StrCat("bucketd ", kPlannerVersion);
  plan.cost_profile = std::string(costs.profile_id());
  return plan;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const Graph& graph, const Costs& costs, const PlanOptions& options,
                              const AfterPass& after) {
  absl::StatusOr<Plan> plan = Make(graph, costs, options, after);
  // What was cut short may look like a plan, or like a bug.
  if (IsCancelled()) return absl::CancelledError("the plan is not wanted any more");
  return plan;
}

}  // namespace bucketd
