// What a plan asks of an executor: its buckets, without the graph around them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "passes/base/digest.h"
#include "passes/base/types.h"

namespace bucketd::agent {

struct BucketSpec {
  std::string name;      // for messages; ranks need not agree on it
  std::string mesh_dim;  // with lane: which communicator
  int32_t lane = 0;
  int32_t group_size = 0;
  CollectiveKind kind = CollectiveKind::kUnspecified;  // all-gather, reduce-scatter or all-reduce
  ReduceOp op = ReduceOp::kNone;
  DType dtype = DType::kUnspecified;  // on the wire
  BucketMode mode = BucketMode::kPacked;
  CopyStream copies = CopyStream::kCompute;
  // Elements a rank, as Collective::count, of each member in payload order; one or more.
  std::vector<int64_t> counts;
};

// Of the full message, as Bucket::bytes.
int64_t FullBytes(const BucketSpec& spec);

// A bucket is started once and later waited for once.
struct Turn {
  bool start = false;  // else wait
  int32_t bucket = 0;
  friend bool operator==(const Turn&, const Turn&) = default;
};

struct PlanSpec {
  Digest graph{};
  std::vector<BucketSpec> buckets;
  std::vector<Turn> order;
};

// "bucket 3 (layers.0 forward)".
std::string Describe(const PlanSpec& plan, int32_t bucket);

// INVALID_ARGUMENT that names the bucket.
absl::Status Wrong(const PlanSpec& plan, int32_t bucket, const auto&... what) {
  return absl::InvalidArgumentError(absl::StrCat(Describe(plan, bucket), what...));
}

// INVALID_ARGUMENT names what no executor can run: sizes out of range, an op that the collective
// does not have, an order that does not start and wait for each bucket once.
absl::Status Validate(const PlanSpec& plan);

// At most this many buckets, ranks of a group, and bytes of one bucket on the wire.
inline constexpr size_t kMaxBuckets = size_t{1} << 16;
inline constexpr int64_t kMaxGroup = int64_t{1} << 20;
inline constexpr int64_t kMaxBucketBytes = int64_t{1} << 46;

}  // namespace bucketd::agent
