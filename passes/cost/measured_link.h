// What collectives of one class were measured to take: a latency and a bandwidth, in the place of
// the device model's. Rows of CostProfile::links; passes/cost/measured_fit.h makes them of samples.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "passes/base/types.h"

namespace bucketd {

// Collectives that are taken to share latency and bandwidth. The mesh dimension's name is not in
// it: names are the user's, links are the machine's.
struct LinkClass {
  CollectiveKind kind = CollectiveKind::kUnspecified;
  std::string link_class;  // MeshDim::link_class
  int32_t group_size = 0;
  int32_t ranks_per_node = 0;  // 1 to group_size
  DType dtype = DType::kUnspecified;
  friend auto operator<=>(const LinkClass&, const LinkClass&) = default;
};

// "all_gather bf16 over 8 ranks, 8 a node", with the link's name where it has one.
std::string Describe(const LinkClass& of);
// Known kind and dtype; 2 to 2^20 ranks; a printable link name of at most 64 bytes.
absl::Status Validate(const LinkClass& of);
// 0 ("all of them") and whatever exceeds the group become the group's size.
int32_t RanksPerNode(int32_t group_size, int32_t stated);

struct MeasuredLink {
  LinkClass of;
  double alpha_us = 0.0;
  double busbw_bytes_per_s = 0.0;
  // How sure: what the row rests on, and half of the points lie within this share of the line. For
  // people; no cost depends on them.
  int32_t samples = 0, reporters = 0;
  double error = 0.0;
};

// At most this many rows in a profile.
inline constexpr size_t kMaxMeasuredLinks = 4096;

// Rows strictly ascending by class, each valid. Names the row.
absl::Status ValidateLinks(absl::Span<const MeasuredLink> links);

// The row of this class; where its dtype was not measured, the class's first row of another dtype,
// since a link moves bytes whatever they stand for. Null if there is none. O(log rows).
// REQUIRES: ValidateLinks(links).ok().
const MeasuredLink* FindLink(absl::Span<const MeasuredLink> links, const LinkClass& of);

}  // namespace bucketd
