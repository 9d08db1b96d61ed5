// What collectives must share to travel as one message. A pass that asks for more (a direction, a
// depth) pairs this key with it.
#pragma once

#include <compare>
#include <utility>

#include "absl/strings/string_view.h"

#include "passes/base/types.h"
#include "passes/ir/graph.h"

namespace bucketd {

struct BucketKey {
  GroupId group = 0;
  CollectiveKind kind = CollectiveKind::kUnspecified;
  ReduceOp reduce_op = ReduceOp::kNone;
  DType dtype = DType::kUnspecified;

  static BucketKey Of(const Collective& c) { return {c.group, c.kind, c.reduce_op, c.dtype}; }

  friend auto operator<=>(const BucketKey&, const BucketKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BucketKey& key) {
    return H::combine(std::move(h), key.group, key.kind, key.reduce_op, key.dtype);
  }
};

// The first field that differs: "kind", "group", "reduce op" or "dtype"; "" where the keys are
// equal.
inline absl::string_view Difference(const BucketKey& a, const BucketKey& b) {
  if (a.kind != b.kind) return "kind";
  if (a.group != b.group) return "group";
  if (a.reduce_op != b.reduce_op) return "reduce op";
  return a.dtype != b.dtype ? "dtype" : "";
}

}  // namespace bucketd
