#include "tests/gpu_agent/executor_fixture.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bucketd::agent {
namespace {

int ValueAt(int rank, size_t member, int64_t i) {
  return static_cast<int>((static_cast<int64_t>(member) * 5 + i * 7 + rank * 11) % 40);
}

struct Sizes {
  int64_t in = 0, out = 0;
};

Sizes SizesOf(const BucketSpec& spec, int rank, size_t member, int64_t short_by) {
  const int64_t count = spec.counts[member];
  const int64_t full = std::max<int64_t>(count * spec.group_size - short_by, 0);
  const int64_t shard = std::clamp<int64_t>(full - rank * count, 0, count);
  if (spec.kind == CollectiveKind::kAllGather) return {shard, full};
  if (spec.kind == CollectiveKind::kReduceScatter) return {full, shard};
  return {count, count};
}

int Expected(const BucketSpec& spec, int rank, size_t member, int64_t i) {
  const int64_t count = spec.counts[member];
  if (spec.kind == CollectiveKind::kAllGather) {
    return ValueAt(static_cast<int>(i / count), member, i % count);
  }
  const int64_t at = spec.kind == CollectiveKind::kReduceScatter ? rank * count + i : i;
  int sum = 0;
  for (int r = 0; r < spec.group_size; ++r) sum += ValueAt(r, member, at);
  return sum;
}

}  // namespace

BucketData MakeData(const BucketSpec& spec, int rank, DType dtype, int64_t short_by) {
  BucketData data;
  for (size_t m = 0; m < spec.counts.size(); ++m) {
    const Sizes sizes = SizesOf(spec, rank, m, short_by);
    data.in.emplace_back(dtype, sizes.in);
    data.out.emplace_back(dtype, sizes.out);
    for (int64_t i = 0; i < sizes.in; ++i) data.in.back().Set(i, ValueAt(rank, m, i));
  }
  return data;
}

std::string Mistake(const BucketSpec& spec, int rank, const BucketData& data, int64_t short_by) {
  for (size_t m = 0; m < spec.counts.size(); ++m) {
    const int64_t size = SizesOf(spec, rank, m, short_by).out;
    for (int64_t i = 0; i < size; ++i) {
      const int expected = Expected(spec, rank, m, i);
      if (data.out[m].At(i) == expected) continue;
      return absl::StrCat("rank ", rank, " member ", m, " element ", i, ": is ", data.out[m].At(i),
                          ", expected ", expected);
    }
  }
  return "";
}

}  // namespace bucketd::agent
