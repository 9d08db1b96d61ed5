// What a kind of collective is: one row a kind. Whatever depends on a kind's nature asks here, so
// that a new kind is a row and a lowering (passes/README.md has the list of files).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/types.h"

namespace bucketd {

// How much a rank gets beside what it gives, along the first dimension.
enum class ResultSize : uint8_t {
  kSame,       // as much
  kGathered,   // as much of every rank; the result is flat in slices, one a rank
  kScattered,  // its slice of the sum; what is given is flat in slices
  kAnyRows,    // as ranks agree upon: any number of rows
};

struct CollectiveTraits {
  CollectiveKind kind = CollectiveKind::kUnspecified;
  absl::string_view name = "unspecified";  // text form, plan files, tables, metrics
  absl::string_view short_name = "?";      // captured graphs, the referee
  absl::string_view op = "";               // PyTorch's functional op, as captured
  ResultSize result = ResultSize::kSame;
  bool reduces = false;  // has a reduce op
  // Several messages may travel as one. Gathers, scatters and sums of whole tensors do: members of
  // a bucket stand one behind the other in the flat buffer, and every executor knows how.
  bool bucketable = false;
  // Times around the ring: an all-reduce is a reduce-scatter and an all-gather. Latencies count so
  // often, and of its bytes a rank sends (n - 1) / n each time.
  int32_t rounds = 1;
  bool keeps_nothing = false;  // every byte crosses every wire: rounds * 1 instead of (n - 1) / n
  // Nobody leaves before the last one has come, so spans in traces say when that was.
  bool waits_for_all = true;
};

// By the value of the enum.
inline constexpr std::array<CollectiveTraits, 6> kCollectiveTraits = {{
    {.waits_for_all = false},
    {.kind = CollectiveKind::kAllGather,
     .name = "all_gather",
     .short_name = "ag",
     .op = "_c10d_functional.all_gather_into_tensor.default",
     .result = ResultSize::kGathered,
     .bucketable = true},
    {.kind = CollectiveKind::kReduceScatter,
     .name = "reduce_scatter",
     .short_name = "rs",
     .op = "_c10d_functional.reduce_scatter_tensor.default",
     .result = ResultSize::kScattered,
     .reduces = true,
     .bucketable = true},
    {.kind = CollectiveKind::kAllReduce,
     .name = "all_reduce",
     .short_name = "ar",
     .op = "_c10d_functional.all_reduce.default",
     .reduces = true,
     .bucketable = true,
     .rounds = 2},
    {.kind = CollectiveKind::kAllToAll,
     .name = "all_to_all",
     .short_name = "a2a",
     .op = "_c10d_functional.all_to_all_single.default",
     .result = ResultSize::kAnyRows},
    // A root that has buffered its bytes leaves before the others come.
    {.kind = CollectiveKind::kBroadcast,
     .name = "broadcast",
     .short_name = "bc",
     .op = "_c10d_functional.broadcast.default",
     .keeps_nothing = true,
     .waits_for_all = false},
}};

static_assert([] {
  for (size_t i = 0; i < kCollectiveTraits.size(); ++i) {
    if (static_cast<size_t>(kCollectiveTraits[i].kind) != i) return false;
  }
  return true;
}());

// The kinds that there are, ascending; without kUnspecified.
inline absl::Span<const CollectiveTraits> AllCollectives() {
  return absl::MakeConstSpan(kCollectiveTraits).subspan(1);
}

constexpr bool IsKnown(CollectiveKind kind) {
  return kind != CollectiveKind::kUnspecified &&
         static_cast<size_t>(kind) < kCollectiveTraits.size();
}

// Those of kUnspecified for a value that is no kind.
constexpr const CollectiveTraits& TraitsOf(CollectiveKind kind) {
  return kCollectiveTraits[IsKnown(kind) ? static_cast<size_t>(kind) : 0];
}

constexpr bool Bucketable(CollectiveKind kind) { return TraitsOf(kind).bucketable; }
constexpr bool Reduces(CollectiveKind kind) { return TraitsOf(kind).reduces; }
constexpr bool Gathers(CollectiveKind kind) {
  return TraitsOf(kind).result == ResultSize::kGathered;
}
constexpr bool Scatters(CollectiveKind kind) {
  return TraitsOf(kind).result == ResultSize::kScattered;
}
constexpr bool Exchanges(CollectiveKind kind) {
  return TraitsOf(kind).result == ResultSize::kAnyRows;
}
// The sum of whole tensors, which every rank gets.
constexpr bool ReducesWhole(CollectiveKind kind) {
  return Reduces(kind) && TraitsOf(kind).result == ResultSize::kSame;
}

}  // namespace bucketd
