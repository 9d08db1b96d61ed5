// How an order fares under perturbed costs.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/auto/decoder.h"
#include "passes/auto/problem.h"
#include "passes/auto/tuning.h"
#include "passes/sim/stream_clock.h"

namespace bucketd::search {

// By how much costs are off, in 1,024ths: figures that many steps depend on, either way, and
// kernels at most.
struct Errors {
  int64_t either = kEither, spread = kSpread;
};

// Replays orders as they stand under costs that are off: every kernel's, every group's alpha and
// rate, copies, launches and the slowdown beside a collective, each for itself. The cases are
// fixed; they come in pairs that are off in opposite directions, and over all of them the few
// figures that many steps depend on are off independently of one another (an orthogonal array). Not
// thread-safe; the problem outlives it.
class RobustnessEvaluator {
 public:
  static constexpr int kCases = 16;
  // Enough where there are so many kernels that their errors cancel out.
  static constexpr int kFewCases = 4;

  // REQUIRES: cases is one of the two.
  explicit RobustnessEvaluator(const Problem& problem, int cases = kCases, Errors errors = {});

  // What the order takes, summed over all cases; some sum above `most_ps` as soon as it is sure to
  // be above. O(cases * leaders).
  int64_t Of(const Decoded& decoded, int64_t most_ps);

  int cases() const { return cases_; }
  // Steps that the last call of Of() replayed: its cost.
  int64_t replayed() const { return replayed_; }

 private:
  // What a batch takes at nominal costs: parts of its time on the wire, perturbed each for itself.
  struct Launch {
    internal::LaunchWork work;
    int64_t alpha_ps = 0, wire_ps = 0, gamma_ps = 0, copies_ps = 0;
  };
  void Draw();
  Launch LaunchOf(const Batch& batch) const;
  int64_t Replay(const std::vector<Action>& order, int which);

  const Problem& problem_;
  const int cases_;
  const Errors errors_;
  std::vector<int64_t> factors_;  // case by case: of every figure
  std::vector<int16_t> off_;      // of a case and its mirror: how far every leader's kernel is off
  std::vector<Launch> launches_;
  std::vector<int64_t> ends_;
  internal::StreamClock clock_;
  int64_t replayed_ = 0;
};

}  // namespace bucketd::search
