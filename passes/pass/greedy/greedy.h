// Buckets by bytes and topological span: collectives of one key, in the order of their waits, go
// into one bucket until it is full or its members stand too far apart.
//
//   key   kind, group, reduce op, dtype (and direction), as the caller sets it
//   full  the next member would exceed the cap of bucket 0, 1, ... of the key
//   far   the next member's start stands more than the span behind the first member's
//
// A collective that depends on a member, or that would close a cycle with it through buckets found
// earlier, is no member. By default it waits for a second round over its key, and so on, until all
// have been looked at.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/types/span.h"

#include "passes/pass/quotient.h"

namespace bucketd {

struct GreedyCandidate {
  CollectiveId collective = -1;
  int32_t key = 0;       // dense, in the order in which keys are worked off
  int32_t position = 0;  // of the start, when the pass began
  int64_t bytes = 0;
  int32_t start_item = 0, wait_item = 0;
};

struct GreedyRules {
  int32_t max_topo_span = -1;  // -1: none
  // Of bucket `index` of a key, asked for anew when a bucket begins.
  std::function<int64_t(int32_t key, int32_t index)> cap;
  // As torch 2.13 does: a wait of another key ends a run, and each run begins with bucket 0 and
  // keeps its cap.
  bool adjacent_only = false;
  // As torch 2.13 and AutoParallel do: what depends on a member is dropped, and buckets are not
  // looked at together, so that they may form a cycle.
  bool drop_dependent = false;
  // Looked at so many nodes, edges and candidates, the rest stays alone.
  int64_t max_work = std::numeric_limits<int64_t>::max();
};

struct GreedyBucket {
  std::vector<CollectiveId> members;  // in the order of their waits
  int32_t key = 0;
  int64_t bytes = 0, cap = 0;
  int32_t span = 0;                        // from the first to the last member
  bool by_bytes = false, by_span = false;  // what closed it; neither: the end of its list
  int32_t refused = 0;                     // candidates that depended on a member
};

struct GreedyResult {
  std::vector<GreedyBucket> buckets;  // two members or more, in the order of closing
  int32_t refused = 0;                // candidates that were dropped or deferred, each time
  bool out_of_work = false;
};

// `stages`: lists that are worked off one after the other, each by position of the wait. Nodes and
// edges between members count, a key and round.
GreedyResult FindGreedyBuckets(absl::Span<const std::vector<GreedyCandidate>> stages,
                               const GreedyRules& rules, QuotientDag& quotient);

}  // namespace bucketd
