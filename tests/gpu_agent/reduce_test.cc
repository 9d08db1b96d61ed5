// Every code of the narrow formats, against their definition.
#include "gpu_agent/comm/reduce.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

#include "gpu_agent/comm/narrow_float.h"
#include "tests/gpu_agent/reference.h"

namespace bucketd::agent {
namespace {

// Values, the middles between neighbours and what lies next to those.
template <typename Format>
void ExpectEveryCode(DType dtype, uint32_t finite_codes) {
  const NarrowFormat reference = FormatOf(dtype);
  using Storage = typename Format::Storage;
  const auto narrow = [](float value) { return uint32_t{Format::Narrow(value)}; };
  for (uint32_t code = 0; code < finite_codes; ++code) {
    const auto value = static_cast<float>(reference.ValueOf(code));
    ASSERT_EQ(Format::Widen(static_cast<Storage>(code)), value) << code;
    ASSERT_EQ(narrow(value), code);
    ASSERT_EQ(narrow(-value), code | uint32_t{1} << (8 * sizeof(Storage) - 1));
    const auto middle =
        static_cast<float>((reference.ValueOf(code) + reference.ValueOf(code + 1)) / 2);
    const float up = std::numeric_limits<float>::infinity();
    for (const float near : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, up)}) {
      ASSERT_EQ(narrow(near), reference.Nearest(static_cast<double>(near))) << near;
    }
  }
}

TEST(NarrowFloat, WidensExactlyAndRoundsToNearestEven) {
  ExpectEveryCode<Float16>(DType::kF16, 0x7c00);
  ExpectEveryCode<BFloat16>(DType::kBF16, 0x7f7f);  // the last middle is beyond f32
  ExpectEveryCode<Float8E4M3>(DType::kF8E4M3, 0x7f);
  ExpectEveryCode<Float8E5M2>(DType::kF8E5M2, 0x7c);
}

TEST(NarrowFloat, OverflowsAndNansAreNvidias) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Float16::Narrow(65520.0f), 0x7c00);
  EXPECT_EQ(Float16::Narrow(-infinity), 0xfc00);
  EXPECT_EQ(Float16::Narrow(-nan), 0x7fff);
  EXPECT_EQ(BFloat16::Narrow(3.4e38f), 0x7f80);
  EXPECT_EQ(BFloat16::Narrow(infinity), 0x7f80);
  EXPECT_EQ(BFloat16::Narrow(nan), 0x7fff);
  EXPECT_EQ(Float8E4M3::Narrow(1e9f), 0x7e);
  EXPECT_EQ(Float8E4M3::Narrow(-infinity), 0xfe);
  EXPECT_EQ(Float8E4M3::Narrow(nan), 0x7f);
  EXPECT_EQ(Float8E5M2::Narrow(1e9f), 0x7b);
  EXPECT_EQ(Float8E5M2::Narrow(nan), 0x7f);
  EXPECT_EQ(Float16::Widen(0xfc00), -infinity);
  EXPECT_EQ(Float8E5M2::Widen(0x7c), infinity);
  EXPECT_TRUE(std::isnan(Float16::Widen(0x7c01)));
  EXPECT_TRUE(std::isnan(Float8E4M3::Widen(0xff)));
  EXPECT_TRUE(std::isnan(Float8E5M2::Widen(0x7d)));
}

TEST(Reduce, ANanOnEitherSideWins) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum, ReduceOp::kProduct}) {
    const float received[2] = {nan, 1.0f};
    const float own[2] = {1.0f, nan};
    float to[2] = {};
    ReducerOf(DType::kF32, op)(reinterpret_cast<const std::byte*>(received),
                               reinterpret_cast<const std::byte*>(own),
                               reinterpret_cast<std::byte*>(to), 2);
    EXPECT_TRUE(std::isnan(to[0]) && std::isnan(to[1])) << Name(op);
  }
}

// As communicator.h has it.
bool HasOp(DType dtype, ReduceOp op) {
  const absl::string_view name = Name(dtype);
  const bool complex = absl::StartsWith(name, "c");
  const bool floating = complex || absl::StartsWith(name, "f") || absl::StartsWith(name, "bf");
  if (op == ReduceOp::kNone || dtype == DType::kUnspecified) return false;
  if (op == ReduceOp::kAvg) return floating;
  if (op >= ReduceOp::kBand) return !floating;
  return op == ReduceOp::kSum || !complex;
}

TEST(Reduce, EveryDtypeHasTheOpsThatItMayHave) {
  for (int d = 0; d <= static_cast<int>(DType::kC128); ++d) {
    const auto dtype = static_cast<DType>(d);
    for (int o = 0; o <= static_cast<int>(ReduceOp::kBxor); ++o) {
      const auto op = static_cast<ReduceOp>(o);
      EXPECT_EQ(ReducerOf(dtype, op) != nullptr, HasOp(dtype, op)) << Name(dtype) << Name(op);
    }
    EXPECT_EQ(DividerOf(dtype) != nullptr, HasOp(dtype, ReduceOp::kAvg)) << Name(dtype);
  }
}

}  // namespace
}  // namespace bucketd::agent
