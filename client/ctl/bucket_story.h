// Why each bucket of a plan is as it is, in sentences. Every figure is read off the simulated plan,
// or off the same plan with one thing changed and simulated again.
#pragma once

#include <string>
#include <vector>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/simulator.h"

namespace bucketd::ctl {

// What is said of one bucket, a clause each.
struct BucketStory {
  BucketId bucket = 0;
  std::string members;  // whose collectives they are
  std::string form;     // its form, and what the step would take in others
  std::string begins;   // when and why then; when it ends
  std::string larger;   // what keeps it from holding more
};

class BucketStories {
 public:
  // REQUIRES: VerifyPlan(graph, plan).ok(). Keeps references to all three.
  BucketStories(const Graph& graph, const Plan& plan, const Costs& costs);

  // O(steps).
  BucketStory Of(BucketId b) const;
  // All of them; of a large plan those that hold up the step most, up to a bound on work.
  std::vector<BucketStory> All() const;
  std::string Text(const BucketStory& story) const;

 private:
  struct Place {
    size_t start = 0, wait = 0;              // steps of the order
    int64_t launched_ps = 0, waited_ps = 0;  // when the compute stream gets there
    int64_t free_ps = 0;                     // when its stream is, before it
    int64_t ready_ps = 0;                    // when its last input was computed
  };

  void FindPlaces();
  std::string Members(BucketId b) const;
  std::string Form(BucketId b) const;
  std::string Start(BucketId b) const;
  std::string Larger(BucketId b) const;
  // The step with another bucket in its place; with each member by itself.
  Prediction StepWith(BucketId b, Bucket other) const;
  Prediction StepWithout(BucketId b) const;
  bool SameKey(BucketId a, BucketId b) const;
  const Collective& First(BucketId b) const;

  const Graph& graph_;
  const Plan& plan_;
  const Costs& costs_;
  const Simulation simulation_;
  std::vector<Place> places_;  // of a bucket
};

}  // namespace bucketd::ctl
