#include "passes/auto/robustness.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>

#include "passes/base/collectives.h"

namespace bucketd::search {
namespace {

// Factors are in 1,024ths, as kSpread of the kernels and kEither of what many depend on: a little
// more than the standard deviation of an even spread of 30 %.
constexpr int64_t kOne = 1024;

// Numbers that many depend on, beside the rate and alpha of every group.
enum Figure : int32_t { kHostKernel, kHostCollective, kSlowdown, kCopies, kGamma, kFigures };

// Case by case: even ones, and behind each its mirror.
constexpr uint32_t CodeOf(int which) {
  const auto half = static_cast<uint32_t>(which) / 2;
  return which % 2 == 0 ? half : 15 - half;
}

// The columns of an orthogonal array: any two figures are off in the same direction as often as in
// opposite ones. Those of odd weight change sign in the mirror.
constexpr uint32_t kColumns[] = {1, 2, 4, 8, 7, 11, 13, 14, 3, 5, 6, 9, 10, 12, 15};

// splitmix64.
uint64_t Mix(uint64_t z) {
  z = (z + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

int64_t FactorOfFigure(int which, int32_t figure, int64_t either) {
  const auto column = static_cast<size_t>(figure);
  const bool up = column < std::size(kColumns)
                      ? std::popcount(CodeOf(which) & kColumns[column]) % 2 == 0
                      : Mix((uint64_t{CodeOf(which)} << 32) + column) % 2 == 0;
  return up ? kOne + either : kOne - either;
}

// Of a case and its mirror, which is off by as much the other way.
int64_t OffOfLeader(int half, LeaderId l, int64_t spread) {
  const uint64_t random = Mix((static_cast<uint64_t>(half) << 40) + static_cast<uint64_t>(l));
  const auto width = static_cast<uint64_t>(2 * spread + 1);
  return static_cast<int64_t>(((random >> 32) * width) >> 32) - spread;
}

// Without overflow.
int64_t Off(int64_t value, int64_t factor) {
  return value / kOne * factor + value % kOne * factor / kOne;
}

}  // namespace

RobustnessEvaluator::RobustnessEvaluator(const Problem& problem, int cases, Errors errors)
    : problem_(problem), cases_(cases), errors_(errors) {}

// Numbers that every replay asks for. Once is enough, and only where there is one.
void RobustnessEvaluator::Draw() {
  if (!off_.empty()) return;
  const auto figures = static_cast<int32_t>(2 * problem_.graph->groups().size()) + kFigures;
  for (int which = 0; which < cases_; ++which) {
    for (int32_t f = 0; f < figures; ++f)
      factors_.push_back(FactorOfFigure(which, f, errors_.either));
  }
  off_.reserve(Index(cases_ / 2) * Index(problem_.size()) + 1);
  for (int half = 0; half < cases_ / 2; ++half) {
    for (LeaderId l = 0; l < problem_.size(); ++l) {
      off_.push_back(static_cast<int16_t>(OffOfLeader(half, l, errors_.spread)));
    }
  }
}

int64_t RobustnessEvaluator::Of(const Decoded& decoded, int64_t most_ps) {
  Draw();
  launches_.clear();
  for (const Batch& batch : decoded.batches) launches_.push_back(LaunchOf(batch));
  replayed_ = 0;
  int64_t sum = 0;
  for (int which = 0; which < cases_ && sum <= most_ps; ++which) {
    sum += Replay(decoded.order, which);
    replayed_ += static_cast<int64_t>(decoded.order.size());
    // An order whose mean is so far above after some of the cases seldom ends below.
    const int64_t hopeless = most_ps / cases_ + Share(most_ps / cases_, kHopelessCases);
    if (which % kCasesAtOnce == kCasesAtOnce - 1 && sum / (which + 1) > hopeless) {
      return std::max(most_ps + 1, sum / (which + 1) * cases_);
    }
  }
  return sum;
}

RobustnessEvaluator::Launch RobustnessEvaluator::LaunchOf(const Batch& batch) const {
  const Transfer& first = problem_.transfer(batch.members[0]);
  Launch launch;
  launch.work = CostOf(problem_, batch).work;
  launch.alpha_ps = first.alpha_ps;
  launch.wire_ps = first.wire_ps;
  if (batch.members.size() == 1) return launch;
  int64_t bytes = 0;
  for (const CollectiveId c : batch.members) bytes += problem_.transfer(c).bytes;
  const auto collective_ps = [&](size_t launches) {
    return problem_.costs->CollectivePs(batch.members[0], bytes, static_cast<int64_t>(launches));
  };
  launch.wire_ps = collective_ps(1) - first.alpha_ps;
  if (batch.form == Form::kGrouped) {
    launch.gamma_ps = collective_ps(batch.members.size()) - collective_ps(1);
  }
  launch.copies_ps = launch.work.slot_ps - launch.alpha_ps - launch.wire_ps - launch.gamma_ps;
  return launch;
}

int64_t RobustnessEvaluator::Replay(const std::vector<Action>& order, int which) {
  const Costs& costs = *problem_.costs;
  const auto groups = static_cast<int32_t>(problem_.graph->groups().size());
  const int64_t* const factors = factors_.data() + Index(which) * Index(2 * groups + kFigures);
  const auto figure = [&](Figure f) { return factors[groups + f]; };
  const auto rate = [&](GroupId g) { return factors[g]; };
  const auto alpha = [&](GroupId g) { return factors[groups + kFigures + g]; };
  const int16_t* const off = off_.data() + Index(which / 2) * Index(problem_.size());
  const int64_t sign = which % 2 == 0 ? 1 : -1;
  const int64_t gamma = figure(kGamma), copies = figure(kCopies);
  clock_.Reset(problem_.graph->groups().size(),
               {Off(costs.host_ps_per_kernel(), figure(kHostKernel)),
                Off(costs.host_ps_per_collective(), figure(kHostCollective)),
                Off(costs.overlap_slowdown_ppb(), figure(kSlowdown))});
  ends_.assign(launches_.size(), 0);
  for (const Action& action : order) {
    if (action.kind == Action::Kind::kRun) {
      const int64_t cost = problem_.cost[Index(action.id)];
      if (cost > 0) clock_.Kernel(Off(cost, kOne + sign * off[action.id]));
      continue;
    }
    const Launch& launch = launches_[Index(action.id)];
    if (action.kind == Action::Kind::kWait) {
      clock_.WaitUntil(ends_[Index(action.id)]);
      clock_.Kernel(Off(launch.work.copy_out_ps, copies));
      continue;
    }
    clock_.Kernel(Off(launch.work.copy_in_ps, copies));
    internal::LaunchWork work = launch.work;
    work.charged_ps = Off(work.charged_ps, copies);
    work.slot_ps = Off(launch.alpha_ps, alpha(work.group)) + Off(launch.wire_ps, rate(work.group)) +
                   Off(launch.gamma_ps, gamma) + Off(launch.copies_ps, copies);
    ends_[Index(action.id)] = clock_.Launch(work).end_ps;
  }
  return clock_.end_ps();
}

}  // namespace bucketd::search
