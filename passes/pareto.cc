#include "passes/pareto.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "passes/base/status_macros.h"
#include "passes/planner.h"

namespace bucketd {
namespace {

__extension__ typedef __int128 Int128;

// Of program order's peak, parts per million. The first is below what any plan needs: the mode then
// gives the plan with the least memory that it finds.
constexpr int64_t kLeastPpm = 1, kMostPpm = 1'000'000'000;
constexpr int64_t kSeedPpm[] = {kLeastPpm, 1'000'000, 1'050'000, kMostPpm};
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
      RETURN_IF_ERROR(Add(std::move(options), -1).status());
    }
    return absl::OkStatus();
  }

  // False if there is nothing left to gain.
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
    PlanOptions options = options_;
    options.memory_limit_bytes = at + options_.resident_bytes;
    return Add(std::move(options), at);
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

  static bool ByMemory(const Point& a, const Point& b) {
    return std::tuple(a.peak(), a.time()) < std::tuple(b.peak(), b.time());
  }

  // With a plan for at most `limit` bytes. A limit that the mode cannot keep is a limit tried.
  absl::StatusOr<bool> Add(PlanOptions options, int64_t limit) {
    absl::StatusOr<Plan> plan = MakePlan(graph_, costs_, options);
    if (!plan.ok() && (limit < 0 || !absl::IsFailedPrecondition(plan.status()))) {
      return plan.status();
    }
    for (Point& point : points_) {
      if (point.peak() <= limit) point.tried = std::max(point.tried, limit);
    }
    if (plan.ok()) points_.push_back({{std::move(options), *std::move(plan)}, limit});
    return true;
  }

  const Graph& graph_;
  const Costs& costs_;
  const PlanOptions& options_;
  std::vector<Point> points_;
};

}  // namespace

absl::StatusOr<std::vector<ParetoPoint>> ParetoFront(const Graph& graph, const Costs& costs,
                                                     const PlanOptions& options,
                                                     int32_t most_plans) {
  Front front(graph, costs, options);
  RETURN_IF_ERROR(front.Seed());
  for (int32_t made = std::size(kSeedPpm); made < most_plans; ++made) {
    ASSIGN_OR_RETURN(const bool more, front.Split());
    if (!more) break;
  }
  return front.Points();
}

}  // namespace bucketd
