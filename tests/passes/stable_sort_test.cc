// The topological sort that moves as little as it must.
#include "passes/pass/stable_sort.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace bucketd {
namespace {

using Edges = std::vector<std::vector<int32_t>>;

std::vector<int32_t> Sorted(const std::vector<int32_t>& list, const Edges& before,
                            const std::vector<ExtraDep>& extra = {}, int32_t last = -1) {
  const auto sorted = StableTopologicalSort(
      list, static_cast<int32_t>(before.size()),
      [&](int32_t id) { return absl::MakeConstSpan(before[static_cast<size_t>(id)]); }, extra,
      last);
  return sorted.has_value() ? *sorted : std::vector<int32_t>();
}

TEST(StableSort, ASortedListStaysAsItIs) {
  EXPECT_EQ(Sorted({0, 1, 2, 3}, {{}, {0}, {}, {2, 1}}), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(StableSort, WhatCameTooEarlyFollowsTheLastOfWhatItMissed) {
  // 0 needs 2 and 3, in this order; 1 needs 3.
  EXPECT_EQ(Sorted({0, 1, 2, 3, 4}, {{2, 3}, {3}, {}, {}, {}}),
            (std::vector<int32_t>{2, 3, 0, 1, 4}));
  // The last one missing, not the last to be placed: 0 waits for 2 only.
  EXPECT_EQ(Sorted({0, 1, 2, 3, 4}, {{3, 2}, {2}, {}, {}, {}}),
            (std::vector<int32_t>{2, 1, 3, 0, 4}));
}

TEST(StableSort, ADependencyCountsWhereItComesFirst) {
  // Of 0: 2, 3, 2. As a set, 3 is the last.
  EXPECT_EQ(Sorted({0, 1, 2, 3}, {{2, 3, 2}, {2}, {}, {}}), (std::vector<int32_t>{2, 1, 3, 0}));
  EXPECT_EQ(Sorted({0, 1, 3, 2}, {{2, 3, 2}, {3}, {}, {}}), (std::vector<int32_t>{3, 1, 2, 0}));
}

TEST(StableSort, ExtraDependenciesComeLastAndOutputsStayLast) {
  EXPECT_EQ(Sorted({0, 1, 2, 3}, {{1}, {}, {}, {}}, {{3, 0}}), (std::vector<int32_t>{1, 2, 3, 0}));
  EXPECT_EQ(Sorted({0, 1, 2}, {{}, {}, {}}, {}, 0), (std::vector<int32_t>{1, 2, 0}));
}

TEST(StableSort, ACycleHasNoOrder) {
  EXPECT_TRUE(Sorted({0, 1, 2}, {{2}, {0}, {1}}).empty());
  EXPECT_TRUE(Sorted({0, 1}, {{}, {0}}, {{1, 0}}).empty());
}

}  // namespace
}  // namespace bucketd
