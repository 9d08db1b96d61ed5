// What one thread of a block does of one tile: the body of the kernels, compiled for the host as
// well, where tests run it thread by thread. Nothing outside of the tile's source is ever read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpu_agent/pack/tile.h"

namespace bucketd::agent {

template <uint32_t kWords>
struct alignas(4 * kWords) Words {
  uint32_t word[kWords];
};

// IEEE round to nearest even, NaN to 0x7fff: what cvt.rn.bf16.f32 does.
BUCKETD_HOST_DEVICE uint16_t Bf16Bits(uint32_t f32) {
  const uint32_t rounded = (f32 + 0x7fff + ((f32 >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((f32 & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
}

// Two at once, `low` in the lower half.
BUCKETD_HOST_DEVICE uint32_t Bf16Pair(uint32_t low, uint32_t high) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
      : "=r"(pair)
      : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
  return pair;
#else
  return Bf16Bits(low) | static_cast<uint32_t>(Bf16Bits(high)) << 16;
#endif
}

// Each move by the vector (In becomes Out, both aligned to themselves) and by the element.
struct BytesMove {
  using In = Words<4>;
  using Out = Words<4>;
  using From = uint8_t;
  using To = uint8_t;
  BUCKETD_HOST_DEVICE static Out Vector(const In& in) { return in; }
  BUCKETD_HOST_DEVICE static To Element(From from) { return from; }
};
struct F32ToBf16Move {
  using In = Words<4>;
  using Out = Words<2>;
  using From = uint32_t;
  using To = uint16_t;
  BUCKETD_HOST_DEVICE static Out Vector(const In& in) {
    return {{Bf16Pair(in.word[0], in.word[1]), Bf16Pair(in.word[2], in.word[3])}};
  }
  BUCKETD_HOST_DEVICE static To Element(From from) { return Bf16Bits(from); }
};
// NaN keeps its payload here: the wider type has room for it.
struct Bf16ToF32Move {
  using In = Words<2>;
  using Out = Words<4>;
  using From = uint16_t;
  using To = uint32_t;
  BUCKETD_HOST_DEVICE static Out Vector(const In& in) {
    return {{in.word[0] << 16, in.word[0] & 0xffff0000, in.word[1] << 16, in.word[1] & 0xffff0000}};
  }
  BUCKETD_HOST_DEVICE static To Element(From from) { return static_cast<uint32_t>(from) << 16; }
};

// A vector that begins `offset` bytes into the first of two aligned neighbours.
template <uint32_t kWords>
BUCKETD_HOST_DEVICE Words<kWords> Joined(const Words<kWords>& first, const Words<kWords>& second,
                                         uint32_t offset) {
  uint32_t word[2 * kWords];
  for (uint32_t k = 0; k < kWords; ++k) {
    word[k] = first.word[k];
    word[k + kWords] = second.word[k];
  }
  for (uint32_t step = kWords / 2; step > 0; step /= 2) {
    const bool skip = (offset & (4 * step)) != 0;
    for (uint32_t k = 0; k + step < 2 * kWords; ++k) word[k] = skip ? word[k + step] : word[k];
  }
  Words<kWords> joined;
  for (uint32_t k = 0; k < kWords; ++k) {
    const uint64_t both = static_cast<uint64_t>(word[k + 1]) << 32 | word[k];
    joined.word[k] = static_cast<uint32_t>(both >> (8 * (offset & 3)));
  }
  return joined;
}

// Where the kernels read and write: every access is aligned to its size. On the device vectors are
// marked as used once, so that they do not displace what compute keeps in the caches.
struct TileMemory {
  template <class T>
  BUCKETD_HOST_DEVICE T Load(const std::byte* from) const {
    T value;
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) == 16) {
      const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from));
      value = T{{v.x, v.y, v.z, v.w}};
    } else if constexpr (sizeof(T) == 8) {
      const uint2 v = __ldcs(reinterpret_cast<const uint2*>(from));
      value = T{{v.x, v.y}};
    } else {
      value = *reinterpret_cast<const T*>(from);
    }
#else
    std::memcpy(&value, from, sizeof(T));
#endif
    return value;
  }

  template <class T>
  BUCKETD_HOST_DEVICE void Store(std::byte* to, const T& value) const {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) == 16) {
      __stcs(reinterpret_cast<uint4*>(to),
             make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]));
    } else if constexpr (sizeof(T) == 8) {
      __stcs(reinterpret_cast<uint2*>(to), make_uint2(value.word[0], value.word[1]));
    } else {
      *reinterpret_cast<T*>(to) = value;
    }
#else
    std::memcpy(to, &value, sizeof(T));
#endif
  }
};

template <class Op, bool kJoin, class Memory>
BUCKETD_HOST_DEVICE typename Op::In LoadVector(const Memory& memory, const std::byte* from,
                                               uint32_t offset) {
  using In = typename Op::In;
  if constexpr (kJoin) {
    return Joined(memory.template Load<In>(from - offset),
                  memory.template Load<In>(from - offset + sizeof(In)), offset);
  } else {
    return memory.template Load<In>(from);
  }
}

// Vectors of the tile, `kUnroll` loads of a thread in flight.
template <class Op, bool kJoin, uint32_t kUnroll, class Memory>
BUCKETD_HOST_DEVICE void CopyVectors(const Memory& memory, const std::byte* from, std::byte* to,
                                     uint32_t vectors, uint32_t offset, uint32_t thread,
                                     uint32_t threads) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  uint32_t k = thread;
  for (; k + (kUnroll - 1) * threads < vectors; k += kUnroll * threads) {
    In in[kUnroll];
    for (uint32_t u = 0; u < kUnroll; ++u) {
      in[u] = LoadVector<Op, kJoin>(memory, from + (k + u * threads) * sizeof(In), offset);
    }
    for (uint32_t u = 0; u < kUnroll; ++u) {
      memory.Store(to + (k + u * threads) * sizeof(Out), Op::Vector(in[u]));
    }
  }
  for (; k < vectors; k += threads) {
    memory.Store(to + k * sizeof(Out),
                 Op::Vector(LoadVector<Op, kJoin>(memory, from + k * sizeof(In), offset)));
  }
}

template <class Op, class Memory>
BUCKETD_HOST_DEVICE void CopyElements(const Memory& memory, const Tile& tile, uint32_t thread,
                                      uint32_t threads) {
  using From = typename Op::From;
  using To = typename Op::To;
  constexpr uint32_t kEach = sizeof(typename Op::Out) / sizeof(To);  // elements of a vector

  // Vectors begin where the destination is aligned for them.
  const uint32_t past =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(tile.to) % sizeof(typename Op::Out));
  uint32_t head = past == 0 ? 0 : kEach - past / static_cast<uint32_t>(sizeof(To));
  const uint32_t offset = static_cast<uint32_t>(
      (reinterpret_cast<uintptr_t>(tile.from) + head * sizeof(From)) % sizeof(typename Op::In));
  // Aligned loads around a first or last vector would reach outside of the source.
  const uint32_t spared = offset == 0 ? 0 : kEach;
  head += spared;
  const uint32_t vectors = tile.count < head + spared ? 0 : (tile.count - head - spared) / kEach;
  if (vectors == 0) head = 0;

  const std::byte* from = tile.from + head * sizeof(From);
  std::byte* to = tile.to + head * sizeof(To);
  if (offset == 0) {
    CopyVectors<Op, false, 4>(memory, from, to, vectors, 0, thread, threads);
  } else {
    CopyVectors<Op, true, 2>(memory, from, to, vectors, offset, thread, threads);
  }
  for (uint32_t k = thread; k < tile.count - vectors * kEach; k += threads) {
    const uint32_t element = k < head ? k : k + vectors * kEach;
    memory.Store(tile.to + element * sizeof(To),
                 Op::Element(memory.template Load<From>(tile.from + element * sizeof(From))));
  }
}

template <class Memory>
BUCKETD_HOST_DEVICE void FillZero(const Memory& memory, const Tile& tile, uint32_t thread,
                                  uint32_t threads) {
  using Vector = Words<4>;
  const uint32_t past =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(tile.to) % sizeof(Vector));
  uint32_t head = past == 0 ? 0 : static_cast<uint32_t>(sizeof(Vector)) - past;
  if (head > tile.count) head = tile.count;
  const uint32_t vectors = (tile.count - head) / static_cast<uint32_t>(sizeof(Vector));
  const uint32_t filled = vectors * static_cast<uint32_t>(sizeof(Vector));
  for (uint32_t k = thread; k < vectors; k += threads) {
    memory.Store(tile.to + head + k * sizeof(Vector), Vector{});
  }
  for (uint32_t k = thread; k < tile.count - filled; k += threads) {
    memory.Store(tile.to + (k < head ? k : k + filled), uint8_t{0});
  }
}

// Thread `thread` of `threads`; all of them together copy the tile, in any order.
template <class Memory>
BUCKETD_HOST_DEVICE void CopyTile(const Memory& memory, const Tile& tile, uint32_t thread,
                                  uint32_t threads) {
  switch (tile.move) {
    case Move::kBytes:
      return CopyElements<BytesMove>(memory, tile, thread, threads);
    case Move::kF32ToBf16:
      return CopyElements<F32ToBf16Move>(memory, tile, thread, threads);
    case Move::kBf16ToF32:
      return CopyElements<Bf16ToF32Move>(memory, tile, thread, threads);
    case Move::kZero:
      return FillZero(memory, tile, thread, threads);
  }
}

}  // namespace bucketd::agent
