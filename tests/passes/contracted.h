// A step as the search of mode auto sees it.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

#include "passes/auto/problem.h"
#include "passes/auto/to_plan.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/fit_memory.h"
#include "passes/sim/simulator.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {

inline PlanOptions FreeNumerics() {
  PlanOptions options;
  options.numerics = Numerics::kFree;
  return options;
}

// Owns all that its problem and context point to.
struct Contracted {
  explicit Contracted(const Graph& of) : Contracted(of, CostsOf(of)) {}
  Contracted(Graph of, Costs under, PlanOptions with = FreeNumerics())
      : graph(std::move(of)),
        costs(std::move(under)),
        options(std::move(with)),
        context(graph, costs, options),
        program_order(ProgramOrder(graph)) {
    context.program_order = Simulate(graph, program_order, costs).prediction;
    EXPECT_TRUE((*MakePass("tag-collectives"))->Run(context, program_order).ok());
    absl::StatusOr<search::Problem> contracted = search::Contract(context);
    EXPECT_TRUE(contracted.ok()) << contracted.status();
    problem = *std::move(contracted);
  }
  Contracted(const Contracted&) = delete;
  Contracted& operator=(const Contracted&) = delete;

  int64_t limit() const { return MemoryLimit(context); }
  Plan PlanOf(const search::Decoded& order) const {
    return search::PlanOf(context, problem, order);
  }
  // What the simulator says of the order.
  Prediction Simulated(const search::Decoded& order) const {
    return Simulate(graph, PlanOf(order), costs).prediction;
  }

  const Graph graph;
  const Costs costs;
  const PlanOptions options;
  PassContext context;
  Plan program_order;
  search::Problem problem;
};

}  // namespace bucketd::testing
