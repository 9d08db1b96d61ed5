#include "gpu_agent/comm/reduce.h"

#include <cstring>
#include <type_traits>

#include "gpu_agent/comm/narrow_float.h"

namespace bucketd::agent {
namespace {

template <typename T>
struct Native {
  using Storage = T;
  static T Widen(T value) { return value; }
  static T Narrow(T value) { return value; }
};

template <typename T>
T Load(const std::byte* from, int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Save(T value, std::byte* to, int64_t i) {
  std::memcpy(to + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}

// Unsigned for integers: two's complement makes the signed sum and product the same bits. Narrow
// ones become int in between, which holds a sum but not each product.
struct Sum {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_floating_point_v<T> || sizeof(T) >= sizeof(uint32_t)) {
      return a + b;
    } else {
      return static_cast<T>(a + b);
    }
  }
};
struct Product {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_floating_point_v<T> || sizeof(T) >= sizeof(uint32_t)) {
      return a * b;
    } else {
      return static_cast<T>(1u * a * b);
    }
  }
};
struct Min {
  template <typename T>
  static T Of(T a, T b) {
    return b < a || IsNan(b) ? b : a;
  }
};
struct Max {
  template <typename T>
  static T Of(T a, T b) {
    return b > a || IsNan(b) ? b : a;
  }
};
struct And {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <typename Format, typename Op, int kLanes = 1>
void Reduce(const std::byte* received, const std::byte* own, std::byte* to, int64_t count) {
  using Storage = typename Format::Storage;
  for (int64_t i = 0; i < count * kLanes; ++i) {
    const auto a = Format::Widen(Load<Storage>(received, i));
    const auto b = Format::Widen(Load<Storage>(own, i));
    Save<Storage>(Format::Narrow(Op::Of(a, b)), to, i);
  }
}

template <typename Format, int kLanes = 1>
void Divide(std::byte* data, int64_t count, int ranks) {
  using Storage = typename Format::Storage;
  using Wide = decltype(Format::Widen(Storage{}));
  const auto by = static_cast<Wide>(ranks);
  for (int64_t i = 0; i < count * kLanes; ++i) {
    Save<Storage>(Format::Narrow(Format::Widen(Load<Storage>(data, i)) / by), data, i);
  }
}

template <typename Format>
ReduceFunction OfFloating(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Reduce<Format, Sum>;
    case ReduceOp::kProduct:
      return Reduce<Format, Product>;
    case ReduceOp::kMin:
      return Reduce<Format, Min>;
    case ReduceOp::kMax:
      return Reduce<Format, Max>;
    default:
      return nullptr;
  }
}

template <typename T>
ReduceFunction OfInteger(ReduceOp op) {
  using Unsigned = Native<std::make_unsigned_t<T>>;
  switch (op) {
    case ReduceOp::kSum:
      return Reduce<Unsigned, Sum>;
    case ReduceOp::kProduct:
      return Reduce<Unsigned, Product>;
    case ReduceOp::kMin:
      return Reduce<Native<T>, Min>;
    case ReduceOp::kMax:
      return Reduce<Native<T>, Max>;
    case ReduceOp::kBand:
      return Reduce<Unsigned, And>;
    case ReduceOp::kBor:
      return Reduce<Unsigned, Or>;
    case ReduceOp::kBxor:
      return Reduce<Unsigned, Xor>;
    default:
      return nullptr;
  }
}

ReduceFunction OfBool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
      return OfInteger<uint8_t>(ReduceOp::kBor);
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
      return OfInteger<uint8_t>(ReduceOp::kBand);
    default:
      return OfInteger<uint8_t>(op);
  }
}

// Two numbers an element.
template <typename T>
ReduceFunction OfComplex(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg ? Reduce<Native<T>, Sum, 2> : nullptr;
}

}  // namespace

ReduceFunction ReducerOf(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kBool:
      return OfBool(op);
    case DType::kU8:
      return OfInteger<uint8_t>(op);
    case DType::kI8:
      return OfInteger<int8_t>(op);
    case DType::kI16:
      return OfInteger<int16_t>(op);
    case DType::kI32:
      return OfInteger<int32_t>(op);
    case DType::kI64:
      return OfInteger<int64_t>(op);
    case DType::kU16:
      return OfInteger<uint16_t>(op);
    case DType::kU32:
      return OfInteger<uint32_t>(op);
    case DType::kU64:
      return OfInteger<uint64_t>(op);
    case DType::kF16:
      return OfFloating<Float16>(op);
    case DType::kBF16:
      return OfFloating<BFloat16>(op);
    case DType::kF32:
      return OfFloating<Native<float>>(op);
    case DType::kF64:
      return OfFloating<Native<double>>(op);
    case DType::kF8E4M3:
      return OfFloating<Float8E4M3>(op);
    case DType::kF8E5M2:
      return OfFloating<Float8E5M2>(op);
    case DType::kC64:
      return OfComplex<float>(op);
    case DType::kC128:
      return OfComplex<double>(op);
    case DType::kUnspecified:
      break;
  }
  return nullptr;
}

DivideFunction DividerOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return Divide<Float16>;
    case DType::kBF16:
      return Divide<BFloat16>;
    case DType::kF32:
      return Divide<Native<float>>;
    case DType::kF64:
      return Divide<Native<double>>;
    case DType::kF8E4M3:
      return Divide<Float8E4M3>;
    case DType::kF8E5M2:
      return Divide<Float8E5M2>;
    case DType::kC64:
      return Divide<Native<float>, 2>;
    case DType::kC128:
      return Divide<Native<double>, 2>;
    default:
      return nullptr;
  }
}

}  // namespace bucketd::agent
