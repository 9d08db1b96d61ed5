#include "gpu_agent/exec/layout.h"

#include <algorithm>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/gpu_agent/executor_fixture.h"

namespace bucketd::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PlanSpec TwoBuckets() {
  PlanSpec plan;
  plan.buckets = {
      Spec(CollectiveKind::kAllGather, BucketMode::kPacked, DType::kBF16, 4, {5, 100, 5}),
      Spec(CollectiveKind::kAllReduce, BucketMode::kGrouped, DType::kF32, 4, {3, 1})};
  plan.buckets[1].name = "layers.0";
  plan.buckets[1].lane = 1;
  plan.buckets[1].op = ReduceOp::kAvg;
  plan.order = {{true, 0}, {true, 1}, {false, 0}, {false, 1}};
  return plan;
}

TEST(PlanSpecTest, NamesWhatCannotBeRun) {
  EXPECT_TRUE(Validate(TwoBuckets()).ok());
  struct Case {
    void (*change)(PlanSpec& plan);
    const char* says;
  };
  for (const Case& c : {
           Case{[](PlanSpec& p) { p.buckets[0].kind = CollectiveKind::kBroadcast; },
                "buckets[0]: is a broadcast, expected all_gather"},
           Case{[](PlanSpec& p) { p.buckets[0].dtype = DType::kUnspecified; },
                "buckets[0]: has no dtype"},
           Case{[](PlanSpec& p) { p.buckets[1].op = ReduceOp::kNone; },
                "buckets[1]: reduces by \"none\""},
           Case{[](PlanSpec& p) { p.buckets[0].group_size = 0; },
                "buckets[0]: is over 0 ranks, expected 1 to"},
           Case{[](PlanSpec& p) { p.buckets[0].group_size = -4; }, "buckets[0]: is over -4 ranks"},
           Case{[](PlanSpec& p) { p.buckets[1].counts.clear(); }, "buckets[1]: has no members"},
           Case{[](PlanSpec& p) { p.buckets[1].counts[1] = -1; },
                "buckets[1]: member 1 has -1 elements, expected 0 to"},
           Case{[](PlanSpec& p) { p.buckets[0].counts[2] = kMaxBucketBytes / 8 - 104; },
                "buckets[0]: member 2 has"},
           Case{[](PlanSpec& p) { p.order[3].bucket = 2; }, "speaks of bucket 2 of 2"},
           Case{[](PlanSpec& p) { p.order.pop_back(); }, "bucket 1 (layers.0) is never waited for"},
           Case{[](PlanSpec& p) { p.order[3].start = true; },
                "bucket 1 (layers.0) is started twice"},
           Case{[](PlanSpec& p) { p.order.erase(p.order.begin()); },
                "bucket 0 is waited for, but not under way"},
       }) {
    PlanSpec plan = TwoBuckets();
    c.change(plan);
    EXPECT_THAT(Validate(plan).ToString(), HasSubstr(c.says));
  }
}

TEST(LayoutTest, MembersAndBucketsAreAlignedAndApart) {
  const Program program = LayOut(TwoBuckets()).value();
  const BucketLayout& packed = program.buckets[0];
  EXPECT_THAT(packed.offsets, ElementsAre(0, 128, 384));
  EXPECT_EQ(packed.slice_bytes, 512);
  EXPECT_EQ(packed.memory_bytes, 4096);
  EXPECT_EQ(program.buckets[1].memory_bytes, 0);
  EXPECT_EQ(program.memory_bytes, 4096);
  EXPECT_THAT(program.starts, ElementsAre(0, 1));
}

// While a bucket is under way nobody else has its bytes; afterwards somebody may.
TEST(LayoutTest, BucketsShareMemoryOnlyWhereTheOrderKeepsThemApart) {
  PlanSpec plan;
  uint32_t draw = 1;
  const auto next = [&draw](uint32_t below) {
    draw = draw * 1664525U + 1013904223U;
    return (draw >> 8U) % below;
  };
  std::vector<int32_t> open;
  for (int32_t k = 0; k < 400; ++k) {
    plan.buckets.push_back(
        Spec(CollectiveKind::kAllGather, BucketMode::kPacked, DType::kF32, 2, {1 + next(9000)}));
    plan.order.push_back({true, k});
    open.push_back(k);
    while (open.size() > next(6)) {
      const auto which = open.begin() + next(static_cast<uint32_t>(open.size()));
      plan.order.push_back({false, *which});
      open.erase(which);
    }
  }
  for (const int32_t k : open) plan.order.push_back({false, k});
  const Program program = LayOut(plan).value();
  std::vector<const BucketLayout*> live;
  int64_t most = 0, all = 0;
  for (const Turn& turn : plan.order) {
    const BucketLayout* layout = &program.buckets[static_cast<size_t>(turn.bucket)];
    if (!turn.start) {
      live.erase(std::find(live.begin(), live.end(), layout));
      continue;
    }
    int64_t bytes = layout->memory_bytes;
    for (const BucketLayout* other : live) {
      EXPECT_TRUE(layout->memory_at + layout->memory_bytes <= other->memory_at ||
                  other->memory_at + other->memory_bytes <= layout->memory_at);
      bytes += other->memory_bytes;
    }
    EXPECT_EQ(layout->memory_at % kBucketAlignment, 0);
    EXPECT_LE(layout->memory_at + layout->memory_bytes, program.memory_bytes);
    most = std::max(most, bytes);
    all += layout->memory_bytes;
    live.push_back(layout);
  }
  EXPECT_GE(program.memory_bytes, most);
  EXPECT_LT(program.memory_bytes, 2 * most);
  EXPECT_LT(program.memory_bytes * 10, all);
}

TEST(LayoutTest, TheDigestIsOfWhatRanksMustAgreeOn) {
  const auto changed = [](void (*change)(PlanSpec & plan)) {
    PlanSpec plan = TwoBuckets();
    change(plan);
    return LayOut(plan)->digest;
  };
  const Digest plan = changed([](PlanSpec&) {});
  EXPECT_EQ(changed([](PlanSpec& p) { p.buckets[1].name = "layers.1"; }), plan);
  EXPECT_NE(changed([](PlanSpec& p) { p.graph[0] = 1; }), plan);
  EXPECT_NE(changed([](PlanSpec& p) { p.buckets[0].counts = {6, 99, 5}; }), plan);
  EXPECT_NE(changed([](PlanSpec& p) { p.buckets[1].op = ReduceOp::kSum; }), plan);
  EXPECT_NE(changed([](PlanSpec& p) { p.buckets[1].dtype = DType::kI32; }), plan);
  EXPECT_NE(changed([](PlanSpec& p) { p.buckets[1].lane = 2; }), plan);
  EXPECT_NE(changed([](PlanSpec& p) { p.buckets[1].mode = BucketMode::kPacked; }), plan);
  EXPECT_NE(changed([](PlanSpec& p) { std::swap(p.order[0], p.order[1]); }), plan);
}

// What neither a member nor its tensor fills is sent too, and may not be what lay there before.
TEST(LayoutTest, WhatMembersDoNotFillIsZero) {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    const BucketSpec spec = Spec(kind, BucketMode::kPacked, DType::kBF16, 2, {50, 0, 3, 64});
    const Program program = ProgramOf({spec});
    const BucketLayout& layout = program.buckets[0];
    const bool scatter = kind == CollectiveKind::kReduceScatter;
    // Rank 1, whose tensors end 7 elements early.
    BucketData data = MakeData(spec, 1, DType::kF32, /*short_by=*/7);
    HostDevice device;
    const std::unique_ptr<Buffer> memory = device.Allocate(layout.memory_bytes).value();
    std::fill_n(memory->data(), layout.memory_bytes, std::byte{0xff});
    CopyOnHost(Cut(CopyIn(program, 0, 1, data.ins(), memory->data()).value()).value());
    for (int64_t slice = scatter ? 0 : 1; slice < 2; ++slice) {
      for (size_t m = 0; m < spec.counts.size(); ++m) {
        const int64_t begin = layout.offsets[m];
        const int64_t end =
            m + 1 < layout.offsets.size() ? layout.offsets[m + 1] : layout.slice_bytes;
        const int64_t filled = std::clamp<int64_t>(
            data.in[m].size() - (scatter ? slice * spec.counts[m] : 0), 0, spec.counts[m]);
        for (int64_t at = begin + 2 * filled; at < end; ++at) {
          ASSERT_EQ(memory->data()[slice * layout.slice_bytes + at], std::byte{0});
        }
      }
    }
  }
}

}  // namespace
}  // namespace bucketd::agent
