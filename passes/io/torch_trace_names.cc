#include <map>

#include "absl/strings/match.h"

#include "passes/io/torch_trace_events.h"

namespace bucketd::torch_trace {

DType DTypeOf(absl::string_view name) {
  static const auto& kNames =
      *new std::map<absl::string_view, DType>{{"Float", DType::kF32},
                                              {"float", DType::kF32},
                                              {"Double", DType::kF64},
                                              {"double", DType::kF64},
                                              {"Half", DType::kF16},
                                              {"c10::Half", DType::kF16},
                                              {"BFloat16", DType::kBF16},
                                              {"c10::BFloat16", DType::kBF16},
                                              {"Int", DType::kI32},
                                              {"int", DType::kI32},
                                              {"Long", DType::kI64},
                                              {"long", DType::kI64},
                                              {"long int", DType::kI64},
                                              {"Short", DType::kI16},
                                              {"short", DType::kI16},
                                              {"short int", DType::kI16},
                                              {"Char", DType::kI8},
                                              {"signed char", DType::kI8},
                                              {"Byte", DType::kU8},
                                              {"unsigned char", DType::kU8},
                                              {"Bool", DType::kBool},
                                              {"bool", DType::kBool},
                                              {"UInt16", DType::kU16},
                                              {"UInt32", DType::kU32},
                                              {"UInt64", DType::kU64},
                                              {"Float8_e4m3fn", DType::kF8E4M3},
                                              {"Float8_e5m2", DType::kF8E5M2},
                                              {"c10::Float8_e4m3fn", DType::kF8E4M3},
                                              {"ComplexFloat", DType::kC64},
                                              {"c10::Float8_e5m2", DType::kF8E5M2},
                                              {"ComplexDouble", DType::kC128},
                                              {"c10::complex<float>", DType::kC64}};
  const auto it = kNames.find(name);
  return it == kNames.end() ? DType::kUnspecified : it->second;
}

CollectiveKind KindOf(absl::string_view name) {
  const auto has = [&](absl::string_view a, absl::string_view b) {
    return absl::StrContains(name, a) || absl::StrContains(name, b);
  };
  if (absl::StrContains(name, "sparse")) return CollectiveKind::kUnspecified;
  if (has("allgather", "all_gather")) return CollectiveKind::kAllGather;
  if (has("reduce_scatter", "reducescatter")) return CollectiveKind::kReduceScatter;
  if (has("allreduce", "all_reduce")) return CollectiveKind::kAllReduce;
  if (has("alltoall", "all_to_all")) return CollectiveKind::kAllToAll;
  if (absl::StrContains(name, "broadcast")) return CollectiveKind::kBroadcast;
  return CollectiveKind::kUnspecified;
}

}  // namespace bucketd::torch_trace
