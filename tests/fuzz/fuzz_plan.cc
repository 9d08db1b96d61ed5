// Plans, on the wire and as JSON, for a graph with two groups, a view, an in-place op and random
// ops.
#include "passes/cost/costs.h"
#include "passes/io/plan_file.h"
#include "passes/io/plan_json.h"
#include "passes/io/proto_io.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "passes/text/bir.h"
#include "tests/fuzz/fuzz_target.h"

namespace bucketd::fuzz {
namespace {

constexpr char kGraph[] =
    R"(graph backward mesh(dp=4 alpha=20us busbw=100GB/s, rep=2 alpha=30us busbw=50GB/s) {
  %t = tangent : bf16[64,64]
  %p0 = param(layers.0.w) : bf16[16,64]
  %p1 = param(layers.1.w) : bf16[16,64]
  %g0 = all_gather(%p0)
  %w0 = wait(%g0)
  %g1 = all_gather(%p1)
  %w1 = wait(%g1)
  %x0 = mm(%t, %w0) cost=50us
  %v0 = view(%x0) view
  %n0 = rand_like(%x0) cost=5us
  %a0 = add_(%v0, %n0) mutates(%v0) cost=5us
  %n1 = rand_like(%x0) cost=5us
  %x1 = mm(%a0, %w1) cost=50us
  %y1 = add(%x1, %n1) cost=5us
  %s0 = reduce_scatter(%x0)
  %ws0 = wait(%s0)
  %s1 = reduce_scatter(%y1)
  %ws1 = wait(%s1)
  %r0 = all_reduce(%ws0) group=rep
  %wr0 = wait(%r0)
  %r1 = all_reduce(%ws1) group=rep
  %wr1 = wait(%r1)
  return grad(layers.0.w) %wr0, grad(layers.1.w) %wr1
}
)";

struct Fixture {
  ParsedBir bir = Must(ParseBir(kGraph), "the graph is read");
  Costs costs = Must(Costs::FromFile(bir.graph, bir.costs, CostProfile()), "its costs, too");
};

}  // namespace
}  // namespace bucketd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bucketd;
  static const fuzz::Fixture& fixture = *new fuzz::Fixture;
  const Graph& graph = fixture.bir.graph;
  const auto file = ReadPlan(fuzz::View(data, size));
  if (!file.ok() || !VerifyPlan(graph, file->plan).ok()) return 0;
  Plan plan = file->plan;
  plan.node_count = graph.size();  // JSON may leave it out, bytes may not
  for (Bucket& bucket : plan.buckets) LayOut(graph, bucket);
  (void)Simulate(graph, plan, fixture.costs, true);
  const Plan wire = fuzz::Must(ParsePlan(SerializePlan(graph, plan)), "a plan is read from bytes");
  fuzz::Check(wire.order == plan.order, "an order comes back from bytes");
  fuzz::Check(VerifyPlan(graph, wire).ok(), "a plan from bytes is as legal");
  const Plan json = fuzz::Must(PlanFromJson(PlanToJson(graph, plan)), "a plan is read from JSON");
  fuzz::Check(json.order == plan.order, "an order comes back from JSON");
  BirParts parts;
  parts.plan = &plan;
  const ParsedBir text = fuzz::Must(ParseBir(PrintBir(graph, parts)), "a plan is read from text");
  fuzz::Check(text.plan.has_value() && text.plan->order == plan.order,
              "an order comes back from text");
  return 0;
}
