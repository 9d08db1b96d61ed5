#include "tests/gpu_agent/cudasim/reduction.h"

#include "gpu_agent/comm/reduce.h"
#include "passes/base/types.h"

namespace bucketd::agent::sim {
namespace {

DType TypeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return DType::kI8;
    case ncclUint8:
      return DType::kU8;
    case ncclInt32:
      return DType::kI32;
    case ncclUint32:
      return DType::kU32;
    case ncclInt64:
      return DType::kI64;
    case ncclUint64:
      return DType::kU64;
    case ncclFloat16:
      return DType::kF16;
    case ncclBfloat16:
      return DType::kBF16;
    case ncclFloat32:
      return DType::kF32;
    case ncclFloat64:
      return DType::kF64;
    case ncclFloat8e4m3:
      return DType::kF8E4M3;
    case ncclFloat8e5m2:
      return DType::kF8E5M2;
    default:
      return DType::kUnspecified;
  }
}

ReduceOp OpOf(ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return ReduceOp::kProduct;
    case ncclMax:
      return ReduceOp::kMax;
    case ncclMin:
      return ReduceOp::kMin;
    case ncclAvg:
      return ReduceOp::kAvg;
    default:
      return ReduceOp::kSum;
  }
}

size_t BytesOf(const Call& call) {
  return call.count * static_cast<size_t>(ItemSize(TypeOf(call.type)));
}

// NCCL's average of 8-bit floats: each rank's part times 1 / ranks, which is of the type itself, so
// that it is rounded and the products are.
std::vector<std::byte> Scaled(DType dtype, const std::byte* input, size_t elements, int ranks) {
  const std::byte one = dtype == DType::kF8E4M3 ? std::byte{0x38} : std::byte{0x3c};
  std::vector<std::byte> scale(elements, one);
  const auto count = static_cast<int64_t>(elements);
  DividerOf(dtype)(scale.data(), count, ranks);
  ReducerOf(dtype, ReduceOp::kProduct)(input, scale.data(), scale.data(), count);
  return scale;
}

}  // namespace

size_t InputBytes(const Call& call, int size) {
  return BytesOf(call) * (call.kind == Kind::kReduceScatter ? static_cast<size_t>(size) : 1);
}

std::vector<std::byte> Reduce(const Call& call, const std::vector<const std::byte*>& inputs) {
  const int size = static_cast<int>(inputs.size());
  const size_t bytes = InputBytes(call, size);
  std::vector<std::byte> whole;
  if (bytes == 0) return whole;
  if (call.kind == Kind::kAllGather) {
    for (const std::byte* input : inputs) whole.insert(whole.end(), input, input + bytes);
    return whole;
  }
  const DType dtype = TypeOf(call.type);
  const auto elements = static_cast<int64_t>(bytes) / ItemSize(dtype);
  const ReduceFunction reduce = ReducerOf(dtype, OpOf(call.op));
  const bool scales = call.op == ncclAvg && (dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2);
  const auto part = [&](const std::byte* input) {
    return scales ? Scaled(dtype, input, bytes, size) : std::vector(input, input + bytes);
  };
  whole = part(inputs[0]);
  for (size_t r = 1; r < inputs.size(); ++r) {
    reduce(whole.data(), part(inputs[r]).data(), whole.data(), elements);
  }
  if (call.op == ncclAvg && !scales) DividerOf(dtype)(whole.data(), elements, size);
  return whole;
}

std::vector<std::byte> PartOf(const Call& call, const std::vector<std::byte>& whole, size_t rank,
                              int size) {
  if (call.kind != Kind::kReduceScatter || whole.empty()) return whole;
  const auto part = static_cast<std::ptrdiff_t>(whole.size() / static_cast<size_t>(size));
  const auto begin = whole.begin() + part * static_cast<std::ptrdiff_t>(rank);
  return {begin, begin + part};
}

}  // namespace bucketd::agent::sim
