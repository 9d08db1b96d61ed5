#include "passes/base/types.h"

#include <cstddef>

#include "passes/base/collectives.h"

namespace bucketd {
namespace {

template <typename Enum, size_t n>
absl::string_view Lookup(Enum value, const absl::string_view (&names)[n]) {
  const auto i = static_cast<size_t>(value);
  return i < n ? names[i] : absl::string_view("?");
}

}  // namespace

int64_t ItemSize(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
    case DType::kC64:
      return 8;
    case DType::kC128:
      return 16;
    case DType::kUnspecified:
      break;
  }
  return 0;
}

absl::string_view Name(DType dtype) {
  static constexpr absl::string_view kNames[] = {
      "unspecified", "bool", "u8",      "i8",      "i16", "i32", "i64", "f16", "bf16",
      "f32",         "f64",  "f8_e4m3", "f8_e5m2", "u16", "u32", "u64", "c64", "c128"};
  return Lookup(dtype, kNames);
}

absl::string_view Name(NodeKind kind) {
  static constexpr absl::string_view kNames[] = {
      "unspecified", "placeholder", "get_attr", "call", "getitem", "collective", "wait", "output"};
  return Lookup(kind, kNames);
}

absl::string_view Name(CollectiveKind kind) {
  return static_cast<size_t>(kind) < kCollectiveTraits.size() ? TraitsOf(kind).name : "?";
}

absl::string_view ShortName(CollectiveKind kind) { return TraitsOf(kind).short_name; }

absl::string_view Name(ReduceOp op) {
  static constexpr absl::string_view kNames[] = {"none",    "sum",  "avg", "min", "max",
                                                 "product", "band", "bor", "bxor"};
  return Lookup(op, kNames);
}

absl::string_view Name(Role role) {
  static constexpr absl::string_view kNames[] = {"none",  "parameter", "buffer",
                                                 "input", "tangent",   "saved"};
  return Lookup(role, kNames);
}

absl::string_view Name(SlotKind kind) {
  static constexpr absl::string_view kNames[] = {"none", "output", "parameter_gradient",
                                                 "input_gradient", "saved"};
  return Lookup(kind, kNames);
}

absl::string_view Name(Direction direction) {
  static constexpr absl::string_view kNames[] = {"none", "forward", "backward"};
  return Lookup(direction, kNames);
}

absl::string_view Name(Tag tag) {
  static constexpr absl::string_view kNames[] = {"none", "fsdp_all_gather", "fsdp_reduce_scatter",
                                                 "ddp_all_reduce", "hsdp_all_reduce"};
  return Lookup(tag, kNames);
}

absl::string_view Name(BucketMode mode) {
  static constexpr absl::string_view kNames[] = {"unspecified", "packed", "grouped"};
  return Lookup(mode, kNames);
}

absl::string_view Name(CopyStream stream) {
  static constexpr absl::string_view kNames[] = {"unspecified", "compute", "comm"};
  return Lookup(stream, kNames);
}

absl::string_view Name(Numerics numerics) {
  static constexpr absl::string_view kNames[] = {"unspecified", "eager_order", "exact", "free"};
  return Lookup(numerics, kNames);
}

absl::string_view Name(Bits bits) {
  static constexpr absl::string_view kNames[] = {"unsaid", "neither", "eager", "unplanned", "both"};
  return Lookup(bits, kNames);
}

}  // namespace bucketd
