#include "passes/pass/overlap_bucket/overlap_bucket_find.h"

#include <algorithm>
#include <cstdlib>
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
