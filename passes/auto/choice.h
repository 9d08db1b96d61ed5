// Which of the orders that the search comes upon becomes the plan: the sturdiest of those that are
// hardly slower than the fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

#include "passes/auto/decoder.h"
#include "passes/auto/order_replay.h"
#include "passes/auto/problem.h"
#include "passes/auto/robustness.h"
#include "passes/auto/search.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd::search {

// A plan and what it takes.
struct Candidate {
  absl::string_view mode;  // "" of the search
  Plan plan;
  Prediction figures;
  Score score;
};

// Of a mode's plan, as the simulator has it.
Candidate CandidateOf(const PassContext& context, absl::string_view mode, Plan plan, int64_t limit);

// Looks, at every stop of the search, around the fastest order for what fares better under
// perturbed costs. From the default effort on, a stop takes nothing slower than the one before it;
// smaller efforts stand for themselves, since the fastest of one may be less sturdy than what the
// next one finds. Not thread-safe.
class Choice {
 public:
  // `told`: what passes before the search said, which every plan of it says again. `floor`: the
  // best plan of the other modes, which no choice is worse than. `others`: of each search for other
  // wires the orders at each stop and at those behind the last one. The first two and `told`
  // outlive it.
  Choice(const PassContext& context, const Problem& problem, int64_t limit, int64_t bound_ps,
         const std::vector<Diagnostic>& told, Candidate floor,
         std::vector<std::vector<Found>> others);

  // What the choice is where the search ends at the stop of that effort.
  void AtStop(Search& search, int32_t effort);

  const Candidate& best() const { return best_; }

 private:
  std::vector<Found> OthersAt(size_t stop);
  void Take(const Decoded& decoded);
  const Candidate& PlanFor(const Decoded& decoded);

  const PassContext& context_;
  const Problem& problem_;
  const int64_t limit_, bound_ps_;
  const std::vector<Diagnostic>& told_;
  const Candidate floor_;
  Candidate best_;
  std::deque<std::pair<Decoded, Candidate>> plans_;  // made of the last orders
  RobustnessEvaluator evaluator_;
  OrderReplay replay_;
  std::vector<std::vector<Found>> others_;
  Found robust_;  // what fared best at the last stop; without an order: none
};

}  // namespace bucketd::search
