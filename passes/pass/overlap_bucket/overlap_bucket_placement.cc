#include <algorithm>
#include <limits>

#include "passes/base/index.h"
#include "passes/pass/overlap_bucket/overlap_bucket_find.h"

namespace bucketd::overlap_bucket {
// torch speaks of the launch whose event it meets; here that launch may stand for a whole bucket,
// whose other members want to stay hidden too.
Placement::Placement(const Model& model, const GroupTimelines& timeline)
    : model_(model), timeline_(timeline), whole_buckets_(!model.upstream) {
  for (size_t l = 0; l < model.launches.size(); ++l) {
    first_of_.push_back(static_cast<int32_t>(l));
    first_hiding_.push_back(model.launches[l].first_hiding);
    last_hiding_.push_back(model.launches[l].last_hiding);
  }
}

void Placement::Join(int32_t first, int32_t candidate) {
  first_of_[Index(candidate)] = first;
  first_hiding_[Index(first)] =
      std::min(first_hiding_[Index(first)], first_hiding_[Index(candidate)]);
  last_hiding_[Index(first)] = std::max(last_hiding_[Index(first)], last_hiding_[Index(candidate)]);
}

// The intervals of the launch that an event belongs to, unless that is to be in the bucket. Of what
// hides a launch the first is the one most easily enclosed.
void Placement::AddLaunch(int32_t event, int32_t first, int32_t candidate) {
  const int32_t met = timeline_.event(event).launch;
  if (met < 0 || met == candidate || first_of_[Index(met)] == first) return;
  const int32_t launch = whole_buckets_ ? first_of_[Index(met)] : met;
  const int32_t from = timeline_.event(timeline_.start(launch)).position;
  runs_.push_back({from, timeline_.event(timeline_.wait(launch)).position});
  const int32_t hiding =
      whole_buckets_ ? first_hiding_[Index(launch)] : model_.launches[Index(launch)].first_hiding;
  if (hiding != std::numeric_limits<int32_t>::max()) hides_.push_back({from, hiding});
}

// Whether any of hides_ lies strictly within any of runs_.
bool Placement::AnyEnclosed() {
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

bool Placement::Preserves(int32_t first, int32_t candidate, bool start_at_first,
                          bool wait_at_first) {
  const auto position = [&](int32_t event) { return timeline_.event(event).position; };
  const int32_t start = timeline_.start(start_at_first ? first : candidate);
  const int32_t wait = timeline_.wait(wait_at_first ? first : candidate);
  const int32_t first_hiding =
      std::min(first_hiding_[Index(first)], first_hiding_[Index(candidate)]);
  const int32_t last_hiding = std::max(last_hiding_[Index(first)], last_hiding_[Index(candidate)]);
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

}  // namespace bucketd::overlap_bucket
