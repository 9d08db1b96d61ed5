#include "passes/ir/ops.h"

#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace bucketd {
namespace {

using Names = absl::flat_hash_set<absl::string_view>;

constexpr char kPointwise[] =
    "_to_copy abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp "
    "clamp_max clamp_min clone convert_element_type cos div elu eq erf exp exp2 expm1 floor "
    "floor_divide fmod ge gelu gelu_backward gt hardswish hardtanh isinf isnan le leaky_relu lerp "
    "log log1p log2 logical_and logical_not logical_or logical_xor lt masked_fill maximum minimum "
    "mul nan_to_num ne neg pow reciprocal relu remainder round rsqrt rsub sigmoid "
    "sigmoid_backward sign silu silu_backward sin softplus sqrt square sub tanh tanh_backward "
    "threshold threshold_backward trunc where";

constexpr char kCompute[] =
    "mm addmm bmm baddbmm _scaled_mm convolution _convolution cudnn_convolution "
    "convolution_overrideable _slow_conv2d_forward convolution_backward "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
    "_flash_attention_forward _flash_attention_backward _efficient_attention_forward "
    "_efficient_attention_backward flex_attention flex_attention_backward";

}  // namespace

absl::string_view BaseName(absl::string_view op) {
  const size_t first = op.find('.');
  if (first == absl::string_view::npos) return op;
  return op.substr(first + 1, op.find('.', first + 1) - first - 1);
}

bool IsOrderedOp(absl::string_view op) {
  static constexpr absl::string_view kParts[] = {
      "rand",        "bernoulli", "dropout", "multinomial",         "normal", "uniform", "poisson",
      "exponential", "rng_state", "_assert", "_local_scalar_dense", "print"};
  const absl::string_view base = BaseName(op);
  if (absl::EndsWith(base, "_backward")) return false;
  for (absl::string_view part : kParts) {
    if (absl::StrContains(base, part)) return true;
  }
  return false;
}

bool IsPointwiseOp(absl::string_view op) {
  static const Names& kNames = *new Names(absl::StrSplit(kPointwise, ' '));
  const absl::string_view base = BaseName(op);
  // An in-place op does what its functional twin does.
  return kNames.contains(base) || kNames.contains(absl::StripSuffix(base, "_"));
}

bool IsComputeOp(absl::string_view op) {
  static const Names& kNames = *new Names(absl::StrSplit(kCompute, ' '));
  return kNames.contains(BaseName(op));
}

Traffic TrafficOf(absl::string_view op) {
  static const Names& kGathers = *new Names{"embedding", "index", "index_select", "gather"};
  static const Names& kFills = *new Names{"zeros", "ones", "full", "arange"};
  const absl::string_view base = BaseName(op);
  if (absl::StartsWith(base, "empty") || absl::StartsWith(base, "new_empty") || base == "detach") {
    return Traffic::kNone;
  }
  if (kGathers.contains(base)) return Traffic::kGather;
  if (kFills.contains(base) || absl::EndsWith(base, "_like") || absl::StartsWith(base, "new_")) {
    return Traffic::kOutputs;
  }
  return Traffic::kAll;
}

int64_t CappedSum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

int64_t CappedProduct(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

int64_t MemoryBytes(Traffic traffic, int64_t written, size_t inputs,
                    absl::FunctionRef<int64_t(size_t input)> bytes_of) {
  if (traffic == Traffic::kNone) return 0;
  if (traffic == Traffic::kOutputs) return written;
  const bool gathers = traffic == Traffic::kGather;
  int64_t bytes = gathers ? CappedSum(written, written) : written;
  for (size_t i = gathers ? 1 : 0; i < inputs; ++i) bytes = CappedSum(bytes, bytes_of(i));
  return bytes;
}

}  // namespace bucketd
