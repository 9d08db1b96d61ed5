#include "gpu_agent/exec/layout.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "gpu_agent/exec/plan_reader.h"
#include "passes/io/plan_json.h"
#include "passes/io/proto_io.h"
#include "passes/planner.h"
#include "tests/gpu_agent/executor_fixture.h"
#include "tests/passes/test_data.h"

namespace bucketd::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPlan[] = R"({"order": ["start:0", 4, "start:1", "wait:0", "wait:1"], "buckets": [
  {"members": [1, 2, 3], "kind": "all_gather", "mesh_dim": "dp", "lane": 0, "group_size": 4,
   "reduce_op": "none", "dtype": "bf16", "bytes": 880, "offsets": [0, 10, 210], "slice_bytes": 220},
  {"members": [5, 6], "mode": "grouped", "name": "layers.0", "kind": "all_reduce", "mesh_dim": "dp",
   "lane": 1, "group_size": 4, "reduce_op": "avg", "dtype": "f32", "bytes": 16, "offsets": [0, 12],
   "slice_bytes": 16}]})";

absl::StatusOr<PlanSpec> Read(const std::string& json) {
  const absl::StatusOr<PlanFile> file = ReadPlan(json);
  return file.ok() ? SpecOf(*file) : file.status();
}

TEST(PlanSpecTest, ReadsOffsetsBackIntoElements) {
  const absl::StatusOr<PlanSpec> plan = Read(kPlan);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->buckets[0].counts, ElementsAre(5, 100, 5));
  EXPECT_THAT(plan->buckets[1].counts, ElementsAre(3, 1));
  EXPECT_EQ(plan->buckets[1].op, ReduceOp::kAvg);
  EXPECT_EQ(plan->buckets[1].lane, 1);
  EXPECT_EQ(Describe(*plan, 1), "bucket 1 (layers.0)");
  EXPECT_THAT(plan->order,
              ElementsAre(Turn{true, 0}, Turn{true, 1}, Turn{false, 0}, Turn{false, 1}));
}

TEST(PlanSpecTest, NamesTheFieldThatCannotBeRun) {
  struct Case {
    const char *from, *to, *says;
  };
  for (const Case& c : {
           Case{"[0, 10, 210]", "[0, 210, 10]",
                "buckets[0].offsets[1]: is 210, which lies behind 10"},
           Case{"[0, 10, 210]", "[0, 10, 230]",
                "buckets[0].offsets[2]: is 230, which lies behind 220"},
           Case{"[0, 10, 210]", "[0, 11, 210]", "slice_bytes: is 11, expected a multiple"},
           Case{"[0, 10, 210]", "[2, 10, 210]", "buckets[0].offsets[0]: is 2, expected 0"},
           Case{"[0, 10, 210]", "[0, 10]", "buckets[0].offsets: has 2, expected one for each of 3"},
           Case{"\"slice_bytes\": 16", "\"slice_bytes\": 18", "buckets[1].slice_bytes: is 18"},
           Case{"\"bytes\": 880", "\"bytes\": 882", "buckets[0].bytes: is 882, expected 4 slices"},
           Case{"\"all_gather\"", "\"broadcast\"", "buckets[0].kind: is \"broadcast\""},
           Case{"\"bf16\"", "\"bf17\"", "buckets[0].dtype: is \"bf17\""},
           Case{"\"avg\"", "\"mean\"", "buckets[1].reduce_op: is \"mean\""},
           Case{"\"avg\"", "\"none\"", "buckets[1]: reduces by \"none\""},
           Case{"\"group_size\": 4", "\"group_size\": 0", "buckets[0].group_size: is 0"},
           Case{"\"group_size\": 4", "\"group_size\": -4", "buckets[0].group_size: is -4"},
           Case{"\"lane\": 1", "\"lane\": -1", "buckets[1].lane: is -1"},
           Case{"\"slice_bytes\": 220", "\"slice_bytes\": 9000000000000000000",
                "buckets[0].slice_bytes: is 9000000000000000000, expected at most"},
           Case{"\"wait:1\"", "\"wait:2\"", "is \"wait:2\", but there are 2 buckets"},
           Case{"\"wait:1\"", "3", "bucket 1 (layers.0) is never waited for"},
           Case{"\"wait:1\"", "\"start:1\"", "bucket 1 (layers.0) is started twice"},
           Case{"\"start:0\"", "0", "bucket 0 is waited for, but not under way"},
       }) {
    const std::string json = absl::StrReplaceAll(kPlan, {{c.from, c.to}});
    ASSERT_NE(json, kPlan) << c.from;
    EXPECT_THAT(Read(json).status().ToString(), HasSubstr(c.says));
  }
}

TEST(LayoutTest, MembersAndBucketsAreAlignedAndApart) {
  const Program program = LayOut(*Read(kPlan)).value();
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
  const Digest plan = LayOut(*Read(kPlan))->digest;
  const auto changed = [](const char* from, const char* to) {
    return LayOut(*Read(absl::StrReplaceAll(kPlan, {{from, to}})))->digest;
  };
  EXPECT_EQ(changed("layers.0", "layers.1"), plan);
  EXPECT_EQ(changed("[1, 2, 3]", "[7, 8, 9]"), plan);
  EXPECT_NE(changed("[0, 10, 210]", "[0, 12, 210]"), plan);
  EXPECT_NE(changed("\"avg\"", "\"sum\""), plan);
  EXPECT_NE(changed("\"f32\"", "\"i32\""), plan);
  EXPECT_NE(changed("\"lane\": 1", "\"lane\": 2"), plan);
  EXPECT_NE(changed("\"grouped\"", "\"packed\""), plan);
  EXPECT_NE(changed("\"start:0\", 4, \"start:1\"", "\"start:1\", 4, \"start:0\""), plan);
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

// What the planner writes, in both of its forms, is what the executor reads.
TEST(LayoutTest, LaysOutThePlansOfThePlanner) {
  const CapturedGraph captured = testing::ReadTestGraph("llama3_debug_fsdp8.bw");
  const CostProfile profile;
  const Costs costs = Costs::FromFile(captured.graph, captured.costs, profile).value();
  PlanOptions options;
  options.mode = "greedy";
  const Plan plan = MakePlan(captured.graph, costs, options).value();
  const auto layout = [](const std::string& bytes) {
    return LayOut(SpecOf(ReadPlan(bytes).value()).value()).value();
  };
  const Program json = layout(PlanToJson(captured.graph, plan));
  ASSERT_EQ(json.buckets.size(), plan.buckets.size());
  ASSERT_GT(json.buckets.size(), 1U);
  EXPECT_EQ(layout(SerializePlan(captured.graph, plan)).digest, json.digest);
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    const BucketSpec& spec = json.plan.buckets[k];
    int64_t bytes = 0;
    for (const int64_t count : spec.counts) bytes += count * ItemSize(spec.dtype);
    EXPECT_EQ(bytes, plan.buckets[k].slice_bytes);
  }
}

}  // namespace
}  // namespace bucketd::agent
