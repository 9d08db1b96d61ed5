#include "tests/gpu_agent/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

namespace bucketd::agent {
namespace {

bool IsNarrow(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF8E4M3 ||
         dtype == DType::kF8E5M2;
}
bool IsSingle(DType dtype) { return dtype == DType::kF32 || dtype == DType::kC64; }
bool IsDouble(DType dtype) { return dtype == DType::kF64 || dtype == DType::kC128; }
bool IsSigned(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 ||
         dtype == DType::kI64;
}

// Complex numbers are two.
int64_t NumbersIn(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128 ? 2 : 1; }

template <typename T>
T Read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

double ReadNumber(DType dtype, const std::byte* from, int64_t width) {
  if (IsSingle(dtype)) return static_cast<double>(Read<float>(from));
  if (IsDouble(dtype)) return Read<double>(from);
  uint32_t code = 0;
  std::memcpy(&code, from, static_cast<size_t>(width));
  const uint32_t sign = uint32_t{1} << (8 * width - 1);
  const double magnitude = FormatOf(dtype).ValueOf(code & (sign - 1));
  return (code & sign) != 0 ? -magnitude : magnitude;
}

void WriteNumber(DType dtype, double value, std::byte* to, int64_t width) {
  if (IsSingle(dtype)) {
    const auto single = static_cast<float>(value);
    std::memcpy(to, &single, sizeof(single));
  } else if (IsDouble(dtype)) {
    std::memcpy(to, &value, sizeof(value));
  } else {
    const uint32_t sign = std::signbit(value) ? uint32_t{1} << (8 * width - 1) : 0;
    const uint32_t code = FormatOf(dtype).Nearest(std::fabs(value)) | sign;
    std::memcpy(to, &code, static_cast<size_t>(width));
  }
}

double Combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    default:
      return a + b;
  }
}

uint64_t CombineBits(DType dtype, ReduceOp op, uint64_t a, uint64_t b) {
  const bool less = IsSigned(dtype) ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
  const bool logical = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return logical ? a | b : a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return less ? a : b;
    case ReduceOp::kMax:
      return less ? b : a;
    case ReduceOp::kBand:
      return a & b;
    case ReduceOp::kBor:
      return a | b;
    default:
      return a ^ b;
  }
}

uint64_t ReadBits(DType dtype, const std::byte* from, int64_t width) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(width));
  const int64_t unused = 64 - 8 * width;
  if (!IsSigned(dtype)) return bits;
  return static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >> unused);
}

bool IsFloat(DType dtype) { return IsNarrow(dtype) || IsSingle(dtype) || IsDouble(dtype); }

// to = to op with, of one number.
void Fold(DType dtype, ReduceOp op, const std::byte* with, std::byte* to, int64_t width) {
  if (IsFloat(dtype)) {
    const double a = ReadNumber(dtype, to, width);
    const double b = ReadNumber(dtype, with, width);
    return WriteNumber(dtype, Combine(op, a, b), to, width);
  }
  const uint64_t bits =
      CombineBits(dtype, op, ReadBits(dtype, to, width), ReadBits(dtype, with, width));
  std::memcpy(to, &bits, static_cast<size_t>(width));
}

// Element `i` of all inputs, from the rank `turn` behind its owner around to the owner.
void ReduceElement(const Collective& of, const std::vector<Bytes>& inputs, int64_t i, size_t owner,
                   size_t turn, std::byte* to) {
  const int64_t item = ItemSize(of.dtype);
  const int64_t width = item / NumbersIn(of.dtype);
  const size_t size = inputs.size();
  std::memcpy(to, inputs[(owner + turn) % size].data() + i * item, static_cast<size_t>(item));
  for (int64_t at = 0; at < item; at += width) {
    for (size_t k = 2; k <= size; ++k) {
      Fold(of.dtype, of.op, inputs[(owner + k * turn) % size].data() + i * item + at, to + at,
           width);
    }
    if (of.op != ReduceOp::kAvg) continue;
    const double sum = ReadNumber(of.dtype, to + at, width);
    WriteNumber(of.dtype, sum / static_cast<double>(size), to + at, width);
  }
}

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 27)) * 0xbf58476d1ce4e5b9;
  return value ^ (value >> 33);
}

}  // namespace

double NarrowFormat::ValueOf(uint32_t magnitude) const {
  const int exponent = static_cast<int>(magnitude >> mantissa);
  const double fraction = magnitude & ((uint32_t{1} << mantissa) - 1);
  const double one = std::ldexp(1.0, mantissa);
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - mantissa);
  return std::ldexp(one + fraction, exponent - bias - mantissa);
}

// Magnitudes grow with their codes; behind the largest finite one comes the next power of two.
uint32_t NarrowFormat::Nearest(double magnitude) const {
  uint32_t low = 0;
  uint32_t high = limit;
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (ValueOf(middle) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low == limit) return limit;
  const double below = magnitude - ValueOf(low);
  const double above = ValueOf(low + 1) - magnitude;
  if (below == above) return low + (low & 1);
  return below < above ? low : low + 1;
}

NarrowFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {.mantissa = 10, .bias = 15, .limit = 0x7c00};
    case DType::kBF16:
      return {.mantissa = 7, .bias = 127, .limit = 0x7f80};
    case DType::kF8E4M3:
      return {.mantissa = 3, .bias = 7, .limit = 0x7e};
    default:
      return {.mantissa = 2, .bias = 15, .limit = 0x7b};
  }
}

Bytes PayloadOf(const Collective& collective, int rank, int size, bool exact) {
  const DType dtype = collective.dtype;
  const int64_t width = ItemSize(dtype) / NumbersIn(dtype);
  Bytes bytes(static_cast<size_t>(InputBytes(collective, size)));
  for (int64_t at = 0; at < static_cast<int64_t>(bytes.size()); at += width) {
    const uint64_t seed = static_cast<uint64_t>(at) * 64 + static_cast<uint64_t>(rank);
    uint64_t random = Mix(seed + 0x632be59bd9b4e019);
    std::byte* to = bytes.data() + at;
    if (IsFloat(dtype)) {
      const double real = std::ldexp(static_cast<double>(static_cast<int64_t>(random)), -61);
      WriteNumber(dtype, exact ? static_cast<double>(random % 2 + 1) : real, to, width);
    } else {
      if (dtype == DType::kBool) random &= 1;
      std::memcpy(to, &random, static_cast<size_t>(width));
    }
  }
  return bytes;
}

std::vector<Bytes> Expected(const Collective& collective, const std::vector<Bytes>& inputs,
                            RingOrder order) {
  const size_t turn = order == RingOrder::kNccl ? 1 : inputs.size() - 1;
  const auto size = static_cast<int64_t>(inputs.size());
  const int64_t item = ItemSize(collective.dtype);
  std::vector<Bytes> outputs;
  if (collective.kind == CollectiveKind::kAllGather) {
    Bytes all;
    for (const Bytes& input : inputs) all.insert(all.end(), input.begin(), input.end());
    outputs.assign(inputs.size(), all);
    return outputs;
  }
  const bool scatter = collective.kind == CollectiveKind::kReduceScatter;
  const int64_t total = scatter ? collective.count * size : collective.count;
  const int64_t chunk = scatter ? collective.count : (collective.count + size - 1) / size;
  Bytes reduced(static_cast<size_t>(total * item));
  for (int64_t i = 0; i < total; ++i) {
    ReduceElement(collective, inputs, i, static_cast<size_t>(i / chunk), turn,
                  reduced.data() + i * item);
  }
  if (!scatter) return std::vector<Bytes>(inputs.size(), reduced);
  for (int64_t rank = 0; rank < size; ++rank) {
    outputs.emplace_back(reduced.begin() + rank * chunk * item,
                         reduced.begin() + (rank + 1) * chunk * item);
  }
  return outputs;
}

}  // namespace bucketd::agent
