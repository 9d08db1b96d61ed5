// Floating-point formats narrower than f32, without branches so that loops over them vectorise.
// Widening is exact. Narrowing rounds to nearest even as NVIDIA's conversions do: f16 and bf16
// overflow to infinity, the f8 formats saturate at their largest finite value; a NaN becomes the
// one with all magnitude bits set.
#pragma once

#include <bit>
#include <cstdint>

namespace bucketd::agent {

// A sign, the exponent with `kBias`, `kMantissa` bits. `kLimit` is the magnitude where overflow
// ends, `kNan` that of the NaN, and from `kSpecial` on magnitudes are infinity (kSpecial itself) or
// NaN; formats without infinity have kSpecial = kNan.
template <typename Bits, int kMantissa, int kBias, uint32_t kLimit, uint32_t kSpecial,
          uint32_t kNan, bool kHasInfinity>
struct NarrowFloat {
  using Storage = Bits;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr int kWidth = 8 * static_cast<int>(sizeof(Bits));
  static constexpr uint32_t kSign = uint32_t{1} << (kWidth - 1);

  static float Widen(Bits narrow) {
    const uint32_t bits = narrow;
    const uint32_t magnitude = bits & (kSign - 1);
    // Subnormals become right as well: the product is exact.
    const float scale = std::bit_cast<float>(static_cast<uint32_t>(254 - kBias) << 23);
    const float finite = std::bit_cast<float>(magnitude << kShift) * scale;
    const uint32_t special =
        kHasInfinity && magnitude == kSpecial ? uint32_t{0x7f800000} : uint32_t{0x7fffffff};
    const uint32_t wide = magnitude >= kSpecial ? special : std::bit_cast<uint32_t>(finite);
    return std::bit_cast<float>(wide | (bits & kSign) << (32 - kWidth));
  }

  static Bits Narrow(float wide) {
    const uint32_t bits = std::bit_cast<uint32_t>(wide);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t half = (uint32_t{1} << (kShift - 1)) - 1 + (magnitude >> kShift & 1);
    const uint32_t normal =
        ((magnitude + half) >> kShift) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
    // Below the smallest normal number the addition rounds: an ulp of the sum is a subnormal's.
    const float magic = std::bit_cast<float>(static_cast<uint32_t>(128 - kBias + kShift) << 23);
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + magic) -
                               std::bit_cast<uint32_t>(magic);
    const uint32_t rounded =
        magnitude < static_cast<uint32_t>(128 - kBias) << 23 ? subnormal : normal;
    const uint32_t finite = rounded < kLimit ? rounded : kLimit;
    const uint32_t sign = bits >> (32 - kWidth) & kSign;
    return static_cast<Bits>(magnitude > 0x7f800000 ? kNan : finite | sign);
  }
};

using Float16 = NarrowFloat<uint16_t, 10, 15, 0x7c00, 0x7c00, 0x7fff, true>;
using Float8E4M3 = NarrowFloat<uint8_t, 3, 7, 0x7e, 0x7f, 0x7f, false>;
using Float8E5M2 = NarrowFloat<uint8_t, 2, 15, 0x7b, 0x7c, 0x7f, true>;

struct BFloat16 {
  using Storage = uint16_t;
  static float Widen(uint16_t narrow) {
    return std::bit_cast<float>(static_cast<uint32_t>(narrow) << 16);
  }
  static uint16_t Narrow(float wide) {
    const uint32_t bits = std::bit_cast<uint32_t>(wide);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
  }
};

}  // namespace bucketd::agent
