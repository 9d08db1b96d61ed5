#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "gpu_agent/pack/segments.h"
#include "gpu_agent/pack/tile_copy.h"

namespace bucketd::agent {
namespace {

using ::testing::HasSubstr;

constexpr std::array<Move, 4> kMoves = {Move::kBytes, Move::kF32ToBf16, Move::kBf16ToF32,
                                        Move::kZero};
constexpr std::byte kUntouched{0xab};

// The nearer of the two bf16 around it, the even one of two equally near.
uint16_t NearestBf16(uint32_t f32) {
  const uint32_t magnitude = f32 & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  const uint32_t below = f32 >> 16, past = f32 & 0xffff;
  const bool up = past > 0x8000 || (past == 0x8000 && below % 2 == 1);
  return static_cast<uint16_t>(below + (up ? 1 : 0));
}

void CopyNaively(const Segment& s) {
  for (int64_t k = 0; k < s.count; ++k) {
    if (s.move == Move::kBytes) s.to[k] = s.from[k];
    if (s.move == Move::kZero) s.to[k] = std::byte{0};
    if (s.move == Move::kF32ToBf16) {
      uint32_t from;
      std::memcpy(&from, s.from + 4 * k, 4);
      const uint16_t to = NearestBf16(from);
      std::memcpy(s.to + 2 * k, &to, 2);
    }
    if (s.move == Move::kBf16ToF32) {
      uint16_t from;
      std::memcpy(&from, s.from + 2 * k, 2);
      const uint32_t to = static_cast<uint32_t>(from) << 16;
      std::memcpy(s.to + 4 * k, &to, 4);
    }
  }
}

// Host memory that holds every access of the kernels' code to what a GPU and its checkers allow:
// aligned, inside of the tile, every byte of the destination written once.
class StrictMemory {
 public:
  explicit StrictMemory(const Tile& tile)
      : tile_(tile), writes_(size_t{tile.count} * WriteSize(tile.move), 0) {}

  template <class T>
  T Load(const std::byte* from) const {
    T value{};
    const int64_t at = from - tile_.from, end = int64_t{tile_.count} * ReadSize(tile_.move);
    if (at < 0 || at + int64_t{sizeof(T)} > end) {
      return Fail("reads", at, sizeof(T)), value;
    }
    if (reinterpret_cast<uintptr_t>(from) % sizeof(T) != 0) Fail("reads unaligned", at, sizeof(T));
    std::memcpy(&value, from, sizeof(T));
    return value;
  }

  template <class T>
  void Store(std::byte* to, const T& value) const {
    const int64_t at = to - tile_.to;
    if (at < 0 || at + int64_t{sizeof(T)} > static_cast<int64_t>(writes_.size())) {
      return Fail("writes", at, sizeof(T));
    }
    if (reinterpret_cast<uintptr_t>(to) % sizeof(T) != 0) Fail("writes unaligned", at, sizeof(T));
    for (size_t k = 0; k < sizeof(T); ++k) ++writes_[static_cast<size_t>(at) + k];
    std::memcpy(to, &value, sizeof(T));
  }

  // Empty if all threads together did what they should.
  std::string fault() const {
    for (size_t k = 0; k < writes_.size() && fault_.empty(); ++k) {
      if (writes_[k] != 1) Fail(absl::StrCat("wrote ", writes_[k], " times"), int64_t(k), 1);
    }
    return fault_;
  }

 private:
  void Fail(absl::string_view what, int64_t at, size_t bytes) const {
    if (fault_.empty()) {
      fault_ = absl::StrCat("tile of ", tile_.count, " elements, move ",
                            static_cast<uint32_t>(tile_.move), ": ", what, " ", bytes, " at ", at);
    }
  }

  Tile tile_;
  mutable std::vector<int> writes_;
  mutable std::string fault_;
};

// A source of random bits with the awkward floats strewn in, and a destination.
class Arena {
 public:
  Arena(size_t bytes, uint64_t seed)
      : random_(seed), source_(bytes + 64), copied_(bytes + 64), wanted_(bytes + 64) {
    static constexpr std::array<uint32_t, 14> kAwkward = {
        0,          0x80000000, 1,          0x007fffff, 0x00008000, 0x7f800000, 0xff800000,
        0x7f800001, 0xffc00000, 0x7f7fffff, 0x3f808000, 0x3f818000, 0x3f818001, 0xbf80ffff};
    for (size_t k = 0; k + 4 <= source_.size(); k += 4) {
      const bool awkward = random_() % 4 == 0;
      const uint32_t bits =
          awkward ? kAwkward[random_() % kAwkward.size()] : static_cast<uint32_t>(random_());
      std::memcpy(&source_[k], &bits, 4);
    }
    Clear();
  }

  void Clear() {
    std::fill(copied_.begin(), copied_.end(), kUntouched);
    std::fill(wanted_.begin(), wanted_.end(), kUntouched);
    wanted_segments_.clear();
    segments_.clear();
    from_ = to_ = 0;
  }

  // Behind the last one, at least so many bytes on; false if the arena is full.
  bool Add(Move move, int64_t count, size_t source_gap, size_t destination_gap) {
    const size_t reads = ReadSize(move), writes = WriteSize(move);
    const bool cast = move == Move::kF32ToBf16 || move == Move::kBf16ToF32;
    const size_t from = Up(from_ + source_gap, cast ? reads : 1);
    const size_t to = Up(to_ + destination_gap, cast ? writes : 1);
    const size_t elements = static_cast<size_t>(count);
    if (from + elements * reads > source_.size() - 16) return false;
    if (to + elements * writes > copied_.size() - 16) return false;
    from_ = from + elements * reads;
    to_ = to + elements * writes;
    const std::byte* source = move == Move::kZero ? nullptr : source_.data() + from;
    segments_.push_back({source, copied_.data() + to, count, move});
    wanted_segments_.push_back({source, wanted_.data() + to, count, move});
    return true;
  }

  std::vector<Tile> Tiles(int64_t tile_bytes) const {
    auto tiles = Cut(segments_, tile_bytes);
    EXPECT_TRUE(tiles.ok()) << tiles.status();
    return *std::move(tiles);
  }

  // Whether the whole destination, bytes between segments included, is what naive code makes it.
  bool Right() {
    for (const Segment& segment : wanted_segments_) CopyNaively(segment);
    return copied_ == wanted_;
  }

  uint64_t Random(uint64_t below) { return random_() % below; }
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  static size_t Up(size_t at, size_t unit) { return (at + unit - 1) / unit * unit; }

  std::mt19937_64 random_;
  std::vector<std::byte> source_, copied_, wanted_;
  std::vector<Segment> segments_, wanted_segments_;
  size_t from_ = 0, to_ = 0;
};

// All threads of a block, the last one first.
void CopyByThreads(const std::vector<Tile>& tiles, uint32_t threads) {
  for (const Tile& tile : tiles) {
    const StrictMemory memory(tile);
    for (uint32_t thread = threads; thread-- > 0;) CopyTile(memory, tile, thread, threads);
    ASSERT_EQ(memory.fault(), "") << threads << " threads";
  }
}

void FillAtRandom(Arena& arena, int segments) {
  for (int k = 0; k < segments; ++k) {
    int64_t count = static_cast<int64_t>(arena.Random(700));
    if (arena.Random(7) == 0) count = static_cast<int64_t>(arena.Random(5));
    if (arena.Random(9) == 0) count = static_cast<int64_t>(arena.Random(30000));
    if (!arena.Add(kMoves[arena.Random(4)], count, arena.Random(17), arena.Random(17))) return;
  }
}

TEST(Pack, TheHostCopiesRandomListsAsNaiveCodeDoes) {
  Arena arena(1 << 19, 1);
  for (int list = 0; list < 150; ++list) {
    arena.Clear();
    FillAtRandom(arena, 60);
    CopyOnHost(arena.Tiles(int64_t{1024} << arena.Random(6)));
    ASSERT_TRUE(arena.Right()) << "list " << list;
  }
}

TEST(Pack, ThreadsOfABlockCopyRandomListsAsNaiveCodeDoes) {
  static constexpr std::array<uint32_t, 9> kThreads = {1, 2, 3, 32, 37, 128, 256, 512, 1024};
  Arena arena(1 << 19, 2);
  for (int list = 0; list < 90; ++list) {
    arena.Clear();
    FillAtRandom(arena, 60);
    const std::vector<Tile> tiles = arena.Tiles(int64_t{1024} << arena.Random(6));
    ASSERT_NO_FATAL_FAILURE(CopyByThreads(tiles, kThreads[arena.Random(kThreads.size())]));
    ASSERT_TRUE(arena.Right()) << "list " << list;
  }
}

TEST(Pack, EveryAlignmentOfEitherSideIsCopiedByBoth) {
  Arena arena(1 << 12, 3);
  for (const Move move : kMoves) {
    for (size_t from = 0; from < 16; ++from) {
      for (size_t to = 0; to < 16; ++to) {
        for (const int64_t count : {1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 65, 79, 200}) {
          for (const bool threads : {false, true}) {
            arena.Clear();
            ASSERT_TRUE(arena.Add(move, count, from, to));
            const std::vector<Tile> tiles = arena.Tiles(1024);
            if (threads) {
              ASSERT_NO_FATAL_FAILURE(CopyByThreads(tiles, 8));
            } else {
              CopyOnHost(tiles);
            }
            ASSERT_TRUE(arena.Right()) << from << " to " << to << ", " << count;
          }
        }
      }
    }
  }
}

TEST(Pack, CastsRoundEveryExponentAndTieToTheNearestEven) {
  const std::array<uint32_t, 7> lows = {0, 1, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
  std::vector<uint32_t> wide;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : lows) wide.push_back(high << 16 | low);
  }
  std::vector<uint16_t> host(wide.size()), threads(wide.size());
  for (std::vector<uint16_t>* narrow : {&host, &threads}) {
    const Segment segment{reinterpret_cast<const std::byte*>(wide.data()),
                          reinterpret_cast<std::byte*>(narrow->data()),
                          static_cast<int64_t>(wide.size()), Move::kF32ToBf16};
    const auto tiles = Cut({&segment, 1});
    ASSERT_TRUE(tiles.ok());
    if (narrow == &host) {
      CopyOnHost(*tiles);
    } else {
      ASSERT_NO_FATAL_FAILURE(CopyByThreads(*tiles, 64));
    }
  }
  for (size_t k = 0; k < wide.size(); ++k) {
    ASSERT_EQ(host[k], NearestBf16(wide[k])) << std::hex << wide[k];
    ASSERT_EQ(threads[k], host[k]) << std::hex << wide[k];
  }
}

TEST(Pack, EveryBf16ComesBackFromF32) {
  std::vector<uint16_t> narrow(0x10000), back(0x10000);
  std::vector<uint32_t> wide(0x10000);
  for (size_t k = 0; k < narrow.size(); ++k) narrow[k] = static_cast<uint16_t>(k);
  const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
  for (const Segment& s : {Segment{bytes(narrow), bytes(wide), 0x10000, Move::kBf16ToF32},
                           Segment{bytes(wide), bytes(back), 0x10000, Move::kF32ToBf16}}) {
    const auto tiles = Cut({&s, 1});
    ASSERT_TRUE(tiles.ok());
    CopyOnHost(*tiles);
  }
  for (uint32_t k = 0; k < 0x10000; ++k) {
    ASSERT_EQ(wide[k], k << 16);
    ASSERT_EQ(back[k], (k & 0x7fff) > 0x7f80 ? 0x7fff : k);
  }
}

TEST(Cut, TilesCoverASegmentOnceAndBeginOnLines) {
  Arena arena(1 << 17, 4);
  for (const Move move : kMoves) {
    const int64_t whole = 4096 / std::max(ReadSize(move), WriteSize(move));
    for (const size_t gap : {0u, 4u, 64u, 124u}) {
      for (const int64_t count : {int64_t{1}, whole - 1, whole, whole + 1, 3 * whole - 1, 3 * whole,
                                  3 * whole + 1, 5 * whole + 7}) {
        arena.Clear();
        ASSERT_TRUE(arena.Add(move, count, gap, gap));
        const Segment segment = arena.segments()[0];
        int64_t at = 0;
        for (const Tile& tile : arena.Tiles(4096)) {
          EXPECT_EQ(tile.from, segment.from + at * ReadSize(move));
          EXPECT_EQ(tile.to, segment.to + at * WriteSize(move));
          EXPECT_TRUE(at == 0 || reinterpret_cast<uintptr_t>(tile.to) % 128 == 0);
          EXPECT_GT(tile.count, 0);
          EXPECT_LE(tile.count, whole);
          at += tile.count;
        }
        EXPECT_EQ(at, count);
      }
    }
  }
}

TEST(Cut, NothingMakesNoTilesEvenWithoutMemory) {
  alignas(128) std::array<std::byte, 256> memory{};
  for (std::byte* to : {static_cast<std::byte*>(nullptr), memory.data() + 1}) {
    const Segment empty{nullptr, to, 0, Move::kF32ToBf16};
    const auto tiles = Cut({&empty, 1});
    ASSERT_TRUE(tiles.ok());
    EXPECT_TRUE(tiles->empty());
  }
  EXPECT_TRUE(Cut({})->empty());
}

TEST(Cut, NamesTheSegmentThatIsWrong) {
  alignas(16) std::array<std::byte, 64> memory{};
  std::byte* p = memory.data();
  const std::vector<std::pair<Segment, std::string>> cases = {
      {{p, p + 32, -1, Move::kBytes}, "a count is not negative (count -1)"},
      {{p, p + 32, (int64_t{1} << 44) + 1, Move::kBytes}, "at most 2^44"},
      {{nullptr, p, 1, Move::kBytes}, "the source is null"},
      {{p, nullptr, 1, Move::kBytes}, "the destination is null"},
      {{nullptr, nullptr, 1, Move::kZero}, "the destination is null"},
      {{p + 2, p + 32, 1, Move::kF32ToBf16}, "the source of a cast is not aligned"},
      {{p, p + 33, 1, Move::kF32ToBf16}, "the destination of a cast is not aligned"},
      {{p + 1, p + 32, 1, Move::kBf16ToF32}, "the source of a cast is not aligned"},
      {{p, p + 34, 1, Move::kBf16ToF32}, "the destination of a cast is not aligned"},
      {{p, p + 32, 1, static_cast<Move>(4)}, "no such move"},
      {{nullptr, p, int64_t{1} << 44, Move::kZero}, "more than 16777216 tiles"},
  };
  for (const auto& [segment, want] : cases) {
    const std::vector<Segment> list = {{p, p + 32, 8, Move::kBytes}, segment};
    const auto tiles = Cut(list);
    EXPECT_EQ(tiles.status().code(), absl::StatusCode::kInvalidArgument) << want;
    EXPECT_THAT(std::string(tiles.status().message()), HasSubstr("segment 1: "));
    EXPECT_THAT(std::string(tiles.status().message()), HasSubstr(want));
  }
  for (const int64_t bytes : {int64_t{0}, int64_t{512}, int64_t{3000}, int64_t{1} << 31}) {
    EXPECT_EQ(Cut({}, bytes).status().code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
}

TEST(Segments, AMoveKeepsADtypeOrGoesBetweenF32AndBf16) {
  EXPECT_EQ(*MoveBetween(DType::kI64, DType::kI64), Move::kBytes);
  EXPECT_EQ(*MoveBetween(DType::kF32, DType::kBF16), Move::kF32ToBf16);
  EXPECT_EQ(*MoveBetween(DType::kBF16, DType::kF32), Move::kBf16ToF32);
  EXPECT_THAT(std::string(MoveBetween(DType::kF16, DType::kF32).status().message()),
              HasSubstr("no copy turns f16 into f32"));
  EXPECT_FALSE(MoveBetween(DType::kUnspecified, DType::kUnspecified).ok());
}

TEST(Segments, BytesOfEachSideFollowTheMove) {
  const auto sides = [](Move move) {
    const Segment segment{nullptr, nullptr, 10, move};
    return std::make_pair(BytesRead(segment), BytesWritten(segment));
  };
  EXPECT_EQ(sides(Move::kBytes), std::make_pair(int64_t{10}, int64_t{10}));
  EXPECT_EQ(sides(Move::kF32ToBf16), std::make_pair(int64_t{40}, int64_t{20}));
  EXPECT_EQ(sides(Move::kBf16ToF32), std::make_pair(int64_t{20}, int64_t{40}));
  EXPECT_EQ(sides(Move::kZero), std::make_pair(int64_t{0}, int64_t{10}));
}

}  // namespace
}  // namespace bucketd::agent
