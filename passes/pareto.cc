#include "passes/pareto.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "passes/base/int128.h"
#include "passes/base/status_macros.h"
#include "passes/modes/pass_registry.h"
#include "passes/planner.h"

namespace bucketd {
namespace {

// Of program order's peak, parts per million. The first is below what any plan needs: the mode then
// gives the plan with the least memory that it finds.
constexpr int64_t kLeastPpm = 1, kMostPpm = 1'000'000'000;
constexpr int64_t kDefaultPpm = 1'050'000;
constexpr int64_t kSeedPpm[] = {kLeastPpm, 1'000'000, kDefaultPpm, kMostPpm};
// Of the step time: below it a split is not worth a plan.
constexpr int64_t kWorthPpm = 20;

class Front {
 public:
  Front(const Graph& graph, const Costs& costs, const PlanOptions& options)
      : graph_(graph), costs_(costs), options_(options) {}

  absl::Status Seed() {
    for (const int64_t ppm : kSeedPpm) {
      PlanOptions options = options_;
      options.memory_limit_ppm = ppm;
      options.memory_limit_bytes = 0;
      RETURN_IF_ERROR(Add(std::move(options)));
    }
    // In bytes the least memory is a limit that somebody may set.
    return AddWithin(std::min_element(points_.begin(), points_.end(), ByMemory)->peak());
  }

  // A search is never slower than the other modes within one limit, yet may leave one of them
  // behind where its own plan takes more memory. The limit that lets that one in gives a plan that
  // covers it.
  absl::Status MeetOtherModes() {
    if (options_.mode != "auto") return absl::OkStatus();
    for (const ModeInfo& mode : AllModes()) {
      if (!mode.tried_by_auto) continue;
      PlanOptions options = options_;
      options.mode = std::string(mode.name);
      options.memory_limit_ppm = kDefaultPpm;
      options.memory_limit_bytes = 0;
      absl::StatusOr<Plan> plan = MakePlan(graph_, costs_, options);
      if (absl::IsFailedPrecondition(plan.status())) continue;  // it refuses the graph
      RETURN_IF_ERROR(plan.status());
      if (Covers(plan->prediction)) continue;
      RETURN_IF_ERROR(AddWithin(plan->prediction.peak_bytes));
      if (!Covers(plan->prediction))
        points_.push_back({{std::move(options), *std::move(plan)}, -1});
    }
    return absl::OkStatus();
  }

  int32_t plans() const { return plans_; }

  // One more plan; false if there is nothing left to gain.
  absl::StatusOr<bool> Split() {
    std::sort(points_.begin(), points_.end(), ByMemory);
    Int128 widest = 0;
    int64_t at = 0;
    int64_t fastest = points_.front().time();
    for (size_t i = 0; i + 1 < points_.size(); ++i) {
      fastest = std::min(fastest, points_[i].time());
      // Up to `tried` bytes nothing was faster than this.
      const int64_t from = std::max(points_[i].tried, points_[i].peak());
      const int64_t room = points_[i + 1].peak() - from;
      const int64_t gain = fastest - points_[i + 1].time();
      if (room < 2 || gain <= fastest / 1'000'000 * kWorthPpm) continue;
      if (Int128{room} * gain > widest) {
        widest = Int128{room} * gain;
        at = from + room / 2;
      }
    }
    if (widest == 0) return false;
    RETURN_IF_ERROR(AddWithin(at));
    return true;
  }

  std::vector<ParetoPoint> Points() {
    std::sort(points_.begin(), points_.end(), ByMemory);
    std::vector<ParetoPoint> front;
    for (Point& point : points_) {
      if (front.empty() || point.time() < front.back().plan.prediction.total_ps) {
        front.push_back(std::move(point.made));
      }
    }
    return front;
  }

 private:
  struct Point {
    ParetoPoint made;
    int64_t tried = -1;  // the largest limit that gave no faster plan than this
    int64_t peak() const { return made.plan.prediction.peak_bytes; }
    int64_t time() const { return made.plan.prediction.total_ps; }
  };

  // Of equal plans the one with a limit in bytes first.
  static bool ByMemory(const Point& a, const Point& b) {
    const auto key = [](const Point& p) {
      return std::tuple(p.peak(), p.time(), -p.made.options.memory_limit_bytes);
    };
    return key(a) < key(b);
  }

  bool Covers(const Prediction& other) const {
    return std::any_of(points_.begin(), points_.end(), [&](const Point& p) {
      return p.peak() <= other.peak_bytes && p.time() <= other.total_ps;
    });
  }

  absl::Status Add(PlanOptions options, int64_t tried = -1) {
    ++plans_;
    ASSIGN_OR_RETURN(Plan plan, MakePlan(graph_, costs_, options));
    points_.push_back({{std::move(options), std::move(plan)}, tried});
    return absl::OkStatus();
  }

  // A limit that the mode cannot keep has been tried as well.
  absl::Status AddWithin(int64_t bytes) {
    for (Point& point : points_) {
      if (point.peak() <= bytes) point.tried = std::max(point.tried, bytes);
    }
    PlanOptions options = options_;
    options.memory_limit_bytes = bytes + options_.resident_bytes;
    const absl::Status status = Add(std::move(options), bytes);
    return absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
  }

  const Graph& graph_;
  const Costs& costs_;
  const PlanOptions& options_;
  std::vector<Point> points_;
  int32_t plans_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<ParetoPoint>> ParetoFront(const Graph& graph, const Costs& costs,
                                                     const PlanOptions& options,
                                                     int32_t most_plans) {
  Front front(graph, costs, options);
  RETURN_IF_ERROR(front.Seed());
  RETURN_IF_ERROR(front.MeetOtherModes());
  while (front.plans() < most_plans) {
    ASSIGN_OR_RETURN(const bool more, front.Split());
    if (!more) break;
  }
  return front.Points();
}

}  // namespace bucketd
