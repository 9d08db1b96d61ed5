// Executors of several ranks in one process, a thread each, and payloads that any order of summing
// keeps exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu_agent/device/host_device.h"
#include "gpu_agent/exec/executor.h"
#include "tests/gpu_agent/ring_of_threads.h"

namespace bucketd::agent {

inline void OnRanks(int ranks, const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
}

// Host memory of a tensor whose elements are small whole numbers.
class Values {
 public:
  Values(DType dtype, int64_t elements, int filler = 77)
      : dtype_(dtype),
        bytes_(static_cast<size_t>(elements * ItemSize(dtype))),
        elements_(elements) {
    for (int64_t i = 0; i < elements; ++i) Set(i, filler);
  }
  Tensor tensor() { return {bytes_.data(), elements_, dtype_}; }
  int64_t size() const { return elements_; }

  void Set(int64_t i, int value) {
    const auto real = static_cast<float>(value);
    uint32_t bits = 0;
    std::memcpy(&bits, &real, sizeof(bits));
    const auto half = static_cast<uint16_t>(bits >> 16);
    if (dtype_ == DType::kF32) {
      Put(i, real);
    } else if (dtype_ == DType::kBF16) {
      Put(i, half);
    } else {
      Put(i, value);
    }
  }

  double At(int64_t i) const {
    if (dtype_ == DType::kF32) return static_cast<double>(Get<float>(i));
    if (dtype_ != DType::kBF16) return Get<int32_t>(i);
    const uint32_t bits = static_cast<uint32_t>(Get<uint16_t>(i)) << 16;
    float real = 0;
    std::memcpy(&real, &bits, sizeof(real));
    return static_cast<double>(real);
  }

 private:
  template <typename T>
  void Put(int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  template <typename T>
  T Get(int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }

  DType dtype_;
  std::vector<std::byte> bytes_;
  int64_t elements_;
};

inline BucketSpec Spec(CollectiveKind kind, BucketMode mode, DType dtype, int ranks,
                       std::vector<int64_t> counts) {
  BucketSpec spec;
  spec.mesh_dim = "dp";
  spec.group_size = ranks;
  spec.kind = kind;
  spec.op = kind == CollectiveKind::kAllGather ? ReduceOp::kNone : ReduceOp::kSum;
  spec.dtype = dtype;
  spec.mode = mode;
  spec.counts = std::move(counts);
  return spec;
}

// One of each kind, packed and grouped, over the lanes in turn; every other one copies on its lane.
inline std::vector<BucketSpec> BucketsOf(int ranks, int lanes) {
  std::vector<BucketSpec> buckets = {
      Spec(CollectiveKind::kAllGather, BucketMode::kPacked, DType::kF32, ranks, {100, 7}),
      Spec(CollectiveKind::kReduceScatter, BucketMode::kPacked, DType::kBF16, ranks, {31, 2000}),
      Spec(CollectiveKind::kAllReduce, BucketMode::kGrouped, DType::kF32, ranks, {55, 9}),
      Spec(CollectiveKind::kAllReduce, BucketMode::kPacked, DType::kF32, ranks, {900})};
  for (size_t k = 0; k < buckets.size(); ++k) {
    buckets[k].lane = static_cast<int32_t>(k) % lanes;
    if (k % 2 == 1) buckets[k].copies = CopyStream::kComm;
  }
  return buckets;
}

// Started one after the other; each is waited for before the next one starts, or all at the end.
inline Program ProgramOf(std::vector<BucketSpec> buckets, bool one_at_a_time = false) {
  PlanSpec plan;
  const auto count = static_cast<int32_t>(buckets.size());
  plan.buckets = std::move(buckets);
  for (int32_t k = 0; k < count; ++k) {
    plan.order.push_back({true, k});
    if (one_at_a_time) plan.order.push_back({false, k});
  }
  for (int32_t k = 0; k < count && !one_at_a_time; ++k) plan.order.push_back({false, k});
  return LayOut(std::move(plan)).value();
}

inline absl::StatusOr<std::unique_ptr<Executor>> OpenExecutor(
    Program program, std::unique_ptr<Communicator> communicator,
    const ExecutorOptions& options = {}) {
  static HostDevice device;
  std::vector<Channel> channels;
  channels.push_back({"dp", 0, std::move(communicator)});
  return Executor::Create(device, std::move(program), std::move(channels), options);
}

// What a rank puts in and gets out of one bucket.
struct BucketData {
  std::vector<Values> in, out;
  std::vector<Tensor> ins() { return Tensors(in); }
  std::vector<Tensor> outs() { return Tensors(out); }

 private:
  static std::vector<Tensor> Tensors(std::vector<Values>& all) {
    std::vector<Tensor> tensors;
    for (Values& values : all) tensors.push_back(values.tensor());
    return tensors;
  }
};

// `short_by`: elements that the full tensor lacks of a part for each rank, as where rows do not
// divide; the last ranks' shards are short, or empty. All-reduces take none.
BucketData MakeData(const BucketSpec& spec, int rank, DType dtype, int64_t short_by = 0);
// What is wrong with `data.out`, or "".
std::string Mistake(const BucketSpec& spec, int rank, const BucketData& data, int64_t short_by = 0);

}  // namespace bucketd::agent
