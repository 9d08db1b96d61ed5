#include "passes/pass/overlap_bucket/overlap_bucket_find.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "passes/base/cancellation.h"
#include "passes/base/index.h"
#include "passes/base/int128.h"

namespace bucketd::overlap_bucket {
namespace {

constexpr int32_t kMaxFailures = 20;   // in a row
constexpr int32_t kMaxPositions = 20;  // of a candidate from the seed, where exposed ones go first

// Whether less of `a` is hidden than of `b`.
bool LessHidden(const LaunchInfo& a, const LaunchInfo& b) {
  const auto hidden = [](const LaunchInfo& l) -> Int128 {
    return l.est_ps > 0 ? l.est_ps - l.exposed_ps : 0;
  };
  const auto all = [](const LaunchInfo& l) -> Int128 { return l.est_ps > 0 ? l.est_ps : 1; };
  return hidden(a) * all(b) < hidden(b) * all(a);
}

// Where a candidate may stand with a bucket without a wait that comes before what is to hide.
class Placement {
 public:
  // torch speaks of the launch whose event it meets; here that launch may stand for a whole bucket,
  // whose other members want to stay hidden too.
  Placement(const Model& model, const GroupTimelines& timeline)
      : model_(model), timeline_(timeline) {
    for (size_t l = 0; l < model.launches.size(); ++l) {
      first_of_.push_back(static_cast<int32_t>(l));
      first_hiding_.push_back(model.launches[l].first_hiding);
      last_hiding_.push_back(model.launches[l].last_hiding);
    }
  }

  // Whether all that hides the members or the candidate stands strictly between the new start and
  // the new wait, and no launch around there is waited for before what hides another has run.
  bool Preserves(int32_t first, int32_t candidate, bool start_at_first, bool wait_at_first) {
    const auto position = [&](int32_t event) { return timeline_.event(event).position; };
    const int32_t start = timeline_.start(start_at_first ? first : candidate);
    const int32_t wait = timeline_.wait(wait_at_first ? first : candidate);
    const int32_t first_hiding =
        std::min(first_hiding_[Index(first)], first_hiding_[Index(candidate)]);
    const int32_t last_hiding =
        std::max(last_hiding_[Index(first)], last_hiding_[Index(candidate)]);
    if (first_hiding <= position(start) || last_hiding >= position(wait)) return false;
    const int32_t last_start =
        std::max(position(timeline_.start(first)), position(timeline_.start(candidate)));
    const int32_t first_wait =
        std::min(position(timeline_.wait(first)), position(timeline_.wait(candidate)));
    runs_.clear();
    hides_.clear();
    runs_.push_back({position(start), position(wait)});
    if (first_hiding != std::numeric_limits<int32_t>::max()) {
      hides_.push_back({position(start), first_hiding});
    }
    for (int32_t e = timeline_.event(start).next; e >= 0 && position(e) < last_start;
         e = timeline_.event(e).next) {
      AddLaunch(e, first, candidate);
    }
    for (int32_t e = timeline_.event(wait).prev; e >= 0 && position(e) > first_wait;
         e = timeline_.event(e).prev) {
      AddLaunch(e, first, candidate);
    }
    return !AnyEnclosed();
  }

  void Join(int32_t first, int32_t candidate) {
    first_of_[Index(candidate)] = first;
    first_hiding_[Index(first)] =
        std::min(first_hiding_[Index(first)], first_hiding_[Index(candidate)]);
    last_hiding_[Index(first)] =
        std::max(last_hiding_[Index(first)], last_hiding_[Index(candidate)]);
  }

 private:
  // From a start to a wait, or to the first node that hides; positions.
  struct Interval {
    int32_t from = 0, to = 0;
  };

  // The intervals of the launch that an event belongs to, unless that is to be in the bucket. Of
  // what hides a launch the first is the one most easily enclosed.
  void AddLaunch(int32_t event, int32_t first, int32_t candidate) {
    const int32_t met = timeline_.event(event).launch;
    if (met < 0 || met == candidate || first_of_[Index(met)] == first) return;
    const bool whole = model_.policy.buckets_are_whole;
    const int32_t launch = whole ? first_of_[Index(met)] : met;
    const int32_t from = timeline_.event(timeline_.start(launch)).position;
    runs_.push_back({from, timeline_.event(timeline_.wait(launch)).position});
    const int32_t hiding =
        whole ? first_hiding_[Index(launch)] : model_.launches[Index(met)].first_hiding;
    if (hiding != std::numeric_limits<int32_t>::max()) hides_.push_back({from, hiding});
  }

  // Whether any of hides_ lies strictly within any of runs_.
  bool AnyEnclosed() {
    const auto earlier = [](const Interval& a, const Interval& b) { return a.from < b.from; };
    std::sort(runs_.begin(), runs_.end(), earlier);
    std::sort(hides_.begin(), hides_.end(), earlier);
    auto run = runs_.begin();
    int32_t latest = -1;  // end of the runs that begin before
    for (const Interval& hide : hides_) {
      for (; run != runs_.end() && run->from < hide.from; ++run) latest = std::max(latest, run->to);
      if (hide.to < latest) return true;
    }
    return false;
  }

  const Model& model_;
  const GroupTimelines& timeline_;
  std::vector<int32_t> first_of_;
  std::vector<int32_t> first_hiding_, last_hiding_;  // positions; of a bucket at its first launch
  std::vector<Interval> runs_, hides_;
};

class Finder {
 public:
  Finder(const Model& model, GroupTimelines& timeline, Relations& relations,
         absl::Span<const int64_t> byte_limits)
      : model_(model),
        options_(model.context.options),
        timeline_(timeline),
        relations_(relations),
        byte_limits_(byte_limits),
        placement_(model, timeline),
        done_(model.launches.size()) {}

  Found Run() {
    std::vector<size_t> rank(model_.context.graph.groups().size());
    for (size_t g = 0; g < model_.groups.size(); ++g) rank[Index(model_.groups[g])] = g;
    // Group by group; keys are numbered by their first launch.
    std::map<std::pair<size_t, int32_t>, std::vector<int32_t>> by_key;
    for (size_t l = 0; l < model_.launches.size(); ++l) {
      const LaunchInfo& launch = model_.launches[l];
      if (launch.key < 0 || model_.skipped[Index(launch.group)]) continue;
      by_key[{rank[Index(launch.group)], launch.key}].push_back(static_cast<int32_t>(l));
    }
    for (auto& [key, launches] : by_key) FindInKey(std::move(launches));
    return std::move(found_);
  }

 private:
  const LaunchInfo& Launch(int32_t l) const { return model_.launches[Index(l)]; }

  void FindInKey(std::vector<int32_t> launches) {
    const bool exposed_first = model_.exposed_first[Index(Launch(launches.front()).group)];
    std::sort(launches.begin(), launches.end(), [&](int32_t a, int32_t b) {
      if (exposed_first) {
        if (LessHidden(Launch(a), Launch(b))) return true;
        if (LessHidden(Launch(b), Launch(a))) return false;
      }
      return Launch(a).start_position < Launch(b).start_position;
    });
    for (size_t i = 0; i < launches.size(); ++i) {
      const int32_t seed = launches[i];
      if (done_[Index(seed)]) continue;
      if (Launch(seed).hides) {
        found_.hiding.push_back(seed);
        continue;
      }
      done_[Index(seed)] = true;
      const size_t end = std::min(launches.size(), i + 1 + Index(options_.max_collective_distance));
      FoundBucket bucket = Grow(absl::MakeConstSpan(launches).subspan(i, end - i), exposed_first);
      auto& out = bucket.launches.size() > 1 ? found_.buckets : found_.alone;
      out.push_back(std::move(bucket));
    }
  }

  // `launches` are the seed and its candidates.
  FoundBucket Grow(absl::Span<const int32_t> launches, bool exposed_first) {
    const int32_t seed = launches.front();
    FoundBucket bucket;
    bucket.launches = {seed};
    bucket.bytes = Launch(seed).bytes;
    int64_t limit = byte_limits_[Index(seed)];
    int32_t failures = 0;
    for (const int32_t candidate : launches.subspan(1)) {
      if (IsCancelled()) break;
      const LaunchInfo& launch = Launch(candidate);
      if (launch.bytes > options_.overlap_bucket_cap_bytes - bucket.bytes) {
        bucket.attempts.over_cap = true;
        break;
      }
      if (done_[Index(candidate)]) continue;
      if (exposed_first &&
          std::abs(launch.start_position - Launch(seed).start_position) > kMaxPositions) {
        ++bucket.attempts.far;
        continue;
      }
      if (launch.bytes > std::min(limit, byte_limits_[Index(candidate)]) - bucket.bytes) {
        ++bucket.attempts.over_memory;
        continue;
      }
      if (TryAdd(bucket, candidate)) {
        bucket.launches.push_back(candidate);
        bucket.bytes += launch.bytes;
        limit = std::min(limit, byte_limits_[Index(candidate)]);
        done_[Index(candidate)] = true;
        failures = 0;
      } else if (++failures >= kMaxFailures) {
        bucket.attempts.gave_up = true;
        break;
      }
    }
    return bucket;
  }

  bool TryAdd(FoundBucket& bucket, int32_t candidate) {
    if (Launch(candidate).hides) {
      ++bucket.attempts.hiding;
      return false;
    }
    if (relations_.Conflict(bucket.launches, candidate)) {
      ++bucket.attempts.dependent;
      return false;
    }
    const int32_t first = bucket.launches.front();
    bool path = false;
    for (const bool start_at_first : {true, false}) {
      // Early start and late wait is what works most often.
      for (const bool wait_at_first : {false, true}) {
        if (!placement_.Preserves(first, candidate, start_at_first, wait_at_first)) continue;
        if (relations_.TryMerge(first, candidate, start_at_first, wait_at_first)) {
          timeline_.Join(first, candidate, start_at_first, wait_at_first);
          placement_.Join(first, candidate);
          return true;
        }
        path = true;
      }
    }
    ++(path ? bucket.attempts.dependent : bucket.attempts.overlap_lost);
    return false;
  }

  const Model& model_;
  const PlanOptions& options_;
  GroupTimelines& timeline_;
  Relations& relations_;
  absl::Span<const int64_t> byte_limits_;
  Placement placement_;
  std::vector<bool> done_;
  Found found_;
};

}  // namespace

Found FindBuckets(const Model& model, GroupTimelines& timeline, Relations& relations,
                  absl::Span<const int64_t> byte_limits) {
  return Finder(model, timeline, relations, byte_limits).Run();
}

}  // namespace bucketd::overlap_bucket
