// Finds buckets in a schedule so that what is hidden stays hidden. Internal to the bucketer.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/pass/overlap_bucket/overlap_bucket_relations.h"
#include "passes/pass/overlap_bucket/overlap_bucket_timeline.h"

namespace bucketd::overlap_bucket {

// What a launch that seeds a bucket, or stays alone, met on its way through the candidates.
struct Attempts {
  int32_t dependent = 0;     // candidates that depend on a member, or the other way round
  int32_t overlap_lost = 0;  // candidates that nothing but dependences would not have refused
  int32_t hiding = 0;        // candidates that hide other launches themselves
  int32_t far = 0;           // candidates too far away in the schedule
  int32_t over_memory = 0;   // candidates refused for the memory limit
  bool over_cap = false;     // ended by a candidate too large
  bool gave_up = false;      // ended by failures in a row
};

struct FoundBucket {
  std::vector<int32_t> launches;  // the seed first
  int64_t bytes = 0;
  Attempts attempts;
};

struct Found {
  std::vector<FoundBucket> buckets;  // two launches or more
  std::vector<FoundBucket> alone;    // the seed only
  std::vector<int32_t> hiding;       // no seeds: they hide what is hidden altogether
};

// Greedy, key by key, by start or, where the group says so, what is hidden least first: a launch
// seeds a bucket, and those behind it join if what is hidden stays hidden. byte_limits: one a
// launch, of any bucket that it is in, beside the cap of the options. O(launches *
// max_collective_distance) placements, each a walk over the events of one group between the two
// launches and up to four path searches.
Found FindBuckets(const Model& model, GroupTimelines& timeline, Relations& relations,
                  absl::Span<const int64_t> byte_limits);

}  // namespace bucketd::overlap_bucket
