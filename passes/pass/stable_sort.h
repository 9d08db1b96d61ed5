// A topological sort that moves as little as it must.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

#include "passes/pass/schedule.h"

namespace bucketd {

// `after` is to stand behind `before`, although it is not computed from it.
struct ExtraDep {
  int32_t before = 0, after = 0;
  friend auto operator<=>(const ExtraDep&, const ExtraDep&) = default;
};

// The ids of `list`, in its order as far as dependencies allow: an id that comes too early is taken
// up right after the last of its dependencies that was missing then, before the list goes on; those
// that wait for the same one keep their order. An id depends on before(id), then on its extra
// deps in the order given; what comes twice counts where it comes first. `last` stands at the end
// whatever its place in `list`; nothing depends on it.
//
// nullopt if there is a cycle. REQUIRES: list holds each of its ids once, and every dependency; ids
// are below id_count, and depend on nothing where they are not in it. O(id_count + list +
// dependencies). Deterministic.
std::optional<std::vector<int32_t>> StableTopologicalSort(
    absl::Span<const int32_t> list, int32_t id_count,
    absl::FunctionRef<absl::Span<const int32_t>(int32_t)> before, absl::Span<const ExtraDep> extra,
    int32_t last);

// The items of a graph with buckets, as above; the output is the last.
std::optional<std::vector<int32_t>> StableTopologicalSort(absl::Span<const int32_t> list,
                                                          const ItemGraph& items,
                                                          absl::Span<const ExtraDep> extra = {});

}  // namespace bucketd
