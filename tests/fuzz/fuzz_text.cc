// The text form: graphs, costs, overlap and plans.
#include "passes/cost/costs.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "passes/text/bir.h"
#include "tests/fuzz/fuzz_target.h"

namespace bucketd::fuzz {
namespace {

bool HasLegalPlan(const ParsedBir& bir) {
  return bir.plan.has_value() && VerifyPlan(bir.graph, *bir.plan).ok();
}

std::string Printed(const ParsedBir& bir) {
  BirParts parts;
  if (bir.has_costs) parts.costs = &bir.costs;
  parts.mesh = &bir.mesh;
  parts.overlap = bir.overlap;
  if (HasLegalPlan(bir)) parts.plan = &*bir.plan;
  return PrintBir(bir.graph, parts);
}

void CheckPlan(const ParsedBir& bir, const ParsedBir& again) {
  const Plan& plan = *bir.plan;
  Check(again.plan.has_value(), "a plan is read back");
  Check(again.plan->order == plan.order, "an order comes back from its text");
  Check(again.plan->buckets.size() == plan.buckets.size(), "buckets come back from their text");
  if (!bir.has_costs) return;
  const auto costs = Costs::FromFile(bir.graph, bir.costs, CostProfile());
  if (costs.ok()) (void)Simulate(bir.graph, plan, *costs, true);
}

}  // namespace
}  // namespace bucketd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bucketd;
  BirLimits limits;
  limits.graph = fuzz::Limits();
  limits.max_bytes = 1 << 16;
  limits.max_line_bytes = 1 << 12;
  const auto bir = ParseBir(fuzz::View(data, size), limits);
  if (!bir.ok()) return 0;
  const std::string text = fuzz::Printed(*bir);
  const ParsedBir again = fuzz::Must(ParseBir(text), "what was printed is read");
  fuzz::Check(fuzz::Printed(again) == text, "printing what was printed changes nothing");
  fuzz::Check(GraphDigest(again.graph) == GraphDigest(bir->graph), "the digest stays");
  fuzz::Check(again.overlap == bir->overlap, "overlap stays");
  fuzz::CheckGraph(bir->graph);
  if (fuzz::HasLegalPlan(*bir)) fuzz::CheckPlan(*bir, again);
  return 0;
}
