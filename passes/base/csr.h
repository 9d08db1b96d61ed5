// Many short lists of ids in two arrays (compressed sparse rows): adjacency, members, uses.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"

#include "passes/base/index.h"

namespace bucketd {

// Lists one behind the other: values go to `all`, Close() ends the list that they belong to.
struct Csr {
  std::vector<int32_t> begin = {0}, all;

  int32_t size() const { return static_cast<int32_t>(begin.size()) - 1; }
  // REQUIRES: 0 <= i < size(). Valid until the next change.
  absl::Span<const int32_t> of(int32_t i) const {
    const size_t from = Index(begin[Index(i)]);
    return absl::MakeConstSpan(all).subspan(from, Index(begin[Index(i) + 1]) - from);
  }
  void Append(absl::Span<const int32_t> values) {
    all.insert(all.end(), values.begin(), values.end());
  }
  void Close() { begin.push_back(static_cast<int32_t>(all.size())); }
};

// `size` lists from pairs that come in any order: `for_pairs(f)` calls f(list, value) for each. It
// is called twice and must give the same pairs; each list keeps their order. O(size + pairs).
template <typename ForPairs>
Csr MakeCsr(int32_t size, ForPairs for_pairs) {
  Csr lists;
  lists.begin.assign(Index(size) + 1, 0);
  for_pairs([&](int32_t list, int32_t) { ++lists.begin[Index(list) + 1]; });
  for (size_t i = 1; i < lists.begin.size(); ++i) lists.begin[i] += lists.begin[i - 1];
  lists.all.resize(Index(lists.begin.back()));
  std::vector<int32_t> at = lists.begin;
  for_pairs([&](int32_t list, int32_t value) { lists.all[Index(at[Index(list)]++)] = value; });
  return lists;
}

}  // namespace bucketd
