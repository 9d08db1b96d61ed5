// Steps of eager FSDP2 in profiler traces, generated here as PyTorch 2.13 writes them;
// tests/python/test_fully_shard.py records real ones on gloo.
#include "passes/io/fsdp_trace.h"

#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "passes/io/fsdp_graph.h"
#include "passes/pass/tags.h"

namespace bucketd {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = FsdpStep::Event::Kind;

constexpr int kHost = 1;

// One process's clock: events one after the other.
class Recorder {
 public:
  json events = json::array();
  double now = 100.0;

  void Span(const std::string& category, const std::string& name, double start, double dur,
            const json& args = json::object(), int thread = kHost) {
    events.push_back({{"ph", "X"},
                      {"cat", category},
                      {"name", name},
                      {"pid", 1},
                      {"tid", thread},
                      {"ts", start},
                      {"dur", dur},
                      {"args", args}});
  }
  void Mark(const std::string& label, double dur = 1.0) {
    Span("user_annotation", "FSDP::" + label, now, dur);
    now += dur;
  }
  // 10 us, of which the collective is 6.
  void Collective(const std::string& label, const std::string& op, const json& dims,
                  const json& shards = json::array(), const std::string& type = "float") {
    Span("user_annotation", "FSDP::" + label, now, 10.0);
    if (!shards.empty()) {
      Span("cpu_op", "fsdp::all_gather_copy_in", now + 1, 1,
           {{"Input Dims", {shards, {64}, json::array()}}});
    }
    const json args =
        dims.empty() ? json::object() : json{{"Input Dims", dims}, {"Input type", {type, type}}};
    Span("cpu_op", op, now + 2, 1, args);
    Span("user_annotation", "gloo:x", now + 3, 6, json::object(), 7);
    now += 10.0;
  }
  void Gather(const std::string& unit, int64_t shard, const json& shards = json::array()) {
    Collective("all_gather (" + unit + ")", "c10d::_allgather_base_", {{2 * shard}, {shard}},
               shards);
  }
  void Reduce(const std::string& unit, int64_t shard) {
    Collective("post_backward_reduce (" + unit + ")", "c10d::_reduce_scatter_base_",
               {{shard}, {2 * shard}});
  }
  std::string Text() const { return json{{"traceEvents", events}}.dump(); }
};

// Units a, and [b, c]; a is gathered again in the backward. Kernels of 5, 20, 30 and 40 us.
void AddStep(Recorder& r) {
  r.Mark("root_pre_forward");
  r.Gather("a", 32, {{24}, {8}});
  r.Mark("pre_forward (a)");
  r.now += 20;
  r.Mark("post_forward (a)");
  r.Gather("b, c", 8);
  r.Mark("pre_forward (b, c)");
  r.now += 5;
  r.Mark("pre_backward (b, c)");
  r.now += 30;
  r.Mark("post_backward_reshard (b, c)");
  r.Reduce("b, c", 8);
  r.Gather("a", 32, {{24}, {8}});
  r.Mark("pre_backward (a)");
  r.now += 40;
  r.Reduce("a", 32);
  r.Mark("root_post_backward_callback");
}

absl::StatusOr<FsdpStep> Read(const Recorder& r) { return ReadFsdpTrace(r.Text(), "t"); }

FsdpStep Good(const absl::StatusOr<FsdpStep>& step) {
  EXPECT_TRUE(step.ok()) << step.status();
  return step.ok() ? *step : FsdpStep{};
}

std::vector<std::string> Story(const FsdpStep& step) {
  std::vector<std::string> lines;
  for (const FsdpStep::Event& e : step.events) {
    if (e.kind == Kind::kCompute) {
      lines.push_back(absl::StrCat(e.backward ? "bw " : "fw ", e.picoseconds / 1'000'000));
    } else {
      const char* what = e.kind == Kind::kUse ? "use " : e.kind == Kind::kReduce ? "reduce " : "-";
      lines.push_back(absl::StrCat(what, step.units[static_cast<size_t>(e.unit)].name));
    }
  }
  return lines;
}

TEST(FsdpTraceTest, ReadsUnitsAndWhatWasComputedBetweenMarks) {
  Recorder r;
  AddStep(r);
  const FsdpStep step = Good(Read(r));
  EXPECT_EQ(step.ranks, 2);
  EXPECT_FALSE(step.on_gpu);
  EXPECT_THAT(Story(step),
              ElementsAre("use a", "fw 20", "-a", "use b, c", "fw 5", "use b, c", "bw 30", "-b, c",
                          "reduce b, c", "use a", "bw 40", "reduce a"));
  ASSERT_EQ(step.units.size(), 2U);
  EXPECT_THAT(step.units[0].shards, ElementsAre(24, 8));
  EXPECT_EQ(step.units[0].gathers, 2);
  EXPECT_THAT(step.units[1].shards, ElementsAre(8));
  EXPECT_EQ(step.units[1].gathered, DType::kF32);
  EXPECT_EQ(WrappingOf(step), "a,b+c");
  // The host stood in its marks; of 58 us in these, 5 collectives took 30.
  EXPECT_TRUE(step.waits_at_launch);
  EXPECT_EQ(step.host_ps_per_collective, 28'000'000 / 5);
  EXPECT_EQ(step.total_ps, 153'000'000);
}

TEST(FsdpTraceTest, ACollectiveBesideComputeHidesUnderIt) {
  Recorder r;
  AddStep(r);
  for (json& event : r.events) {
    if (event["name"] == "gloo:x") event["ts"] = event["ts"].get<double>() + 10.0;
  }
  const FsdpStep step = Good(Read(r));
  EXPECT_FALSE(step.waits_at_launch);
}

TEST(FsdpTraceTest, OnAGpuWorkCountsWhereItWasLaunched) {
  Recorder r;
  AddStep(r);
  json gpu = json::array();
  const auto launch = [&](double at, double took, int number, const std::string& name) {
    r.Span("cuda_runtime", "cudaLaunchKernel", at, 1, {{"correlation", number}});
    r.Span("kernel", name, at + 500, took, {{"correlation", number}}, 99);
  };
  launch(115, 700, 1, "gemm");                      // in the forward of a
  launch(117, 50, 2, "elementwise");                // likewise
  launch(103, 9000, 3, "copy_in");                  // in a mark
  launch(50, 9000, 4, "of_the_step_before");        // before the step
  launch(118, 9000, 5, "ncclDevKernel_AllGather");  // no compute
  const FsdpStep step = Good(Read(r));
  EXPECT_TRUE(step.on_gpu);
  EXPECT_FALSE(step.waits_at_launch);
  EXPECT_THAT(Story(step), ElementsAre("use a", "fw 750", "-a", "use b, c", "use b, c", "-b, c",
                                       "reduce b, c", "use a", "reduce a"));
  EXPECT_EQ(step.total_ps, (103 + 500 + 9000 - 100) * int64_t{1'000'000});
}

TEST(FsdpTraceTest, NcclStatesItsSizesWithoutShapes) {
  Recorder r;
  AddStep(r);
  for (json& event : r.events) {
    if (event["args"].contains("Input type")) event["args"] = json::object();
    if (event["name"] == "fsdp::all_gather_copy_in") event["args"] = json::object();
  }
  EXPECT_THAT(Read(r).status().message(), HasSubstr("collectives without their sizes"));
  const json calls = r.events;
  for (const json& call : calls) {
    if (call["name"].get<std::string>().find("c10d::") != 0) continue;
    const bool gathers = call["name"] == "c10d::_allgather_base_";
    r.Span("cpu_op", "record_param_comms", call["ts"].get<double>() + 0.1, 0.5,
           {{"Collective name", gathers ? "_allgather_base" : "_reduce_scatter_base"},
            {"dtype", "BFloat16"},
            {"In msg nelems", gathers ? 8 : 16},
            {"Out msg nelems", gathers ? 16 : 8}});
  }
  const FsdpStep step = Good(Read(r));
  EXPECT_THAT(step.units[0].shards, ElementsAre(8));
  EXPECT_EQ(step.units[0].gathered, DType::kBF16);
}

TEST(FsdpTraceTest, TakesTheStepOfMedianLength) {
  Recorder r;
  r.Mark("post_backward_reduce (a)");  // the end of a step that began before
  AddStep(r);
  r.now += 1000;
  AddStep(r);
  r.events.back()["dur"] = 77.0;
  r.now += 1000;
  AddStep(r);
  r.events.back()["dur"] = 500.0;
  r.now += 1000;
  r.Mark("root_pre_forward");  // and one that is cut off
  const FsdpStep step = Good(Read(r));
  EXPECT_EQ(step.steps, 3);
  EXPECT_EQ(step.total_ps, (152 + 77) * int64_t{1'000'000});
}

TEST(FsdpTraceTest, WhatCannotBeAdvisedOnSaysWhatToRecord) {
  const auto error = [](const Recorder& r) { return std::string(Read(r).status().message()); };
  const auto said = [](const std::string& what) {
    return testing::AllOf(HasSubstr(what), HasSubstr("record_shapes=True"));
  };
  Recorder none;
  none.Span("cpu_op", "aten::mm", 1, 1);
  EXPECT_THAT(error(none), said("no marks of FSDP2"));
  Recorder forward;
  forward.Mark("root_pre_forward");
  forward.Gather("a", 32);
  EXPECT_THAT(error(forward), said("no step in full"));
  Recorder no_sync = forward;
  no_sync.Mark("root_post_backward_callback");
  EXPECT_THAT(error(no_sync), said("with gradients reduced in between"));
  Recorder alone;
  alone.Mark("root_pre_forward");
  alone.Mark("post_backward_reduce (a)");
  alone.Mark("root_post_backward_callback");
  EXPECT_THAT(error(alone), said("hold no all-gather"));
  Recorder hsdp;
  AddStep(hsdp);
  hsdp.Span("cpu_op", "c10d::allreduce_", hsdp.now - 6, 1);  // in the last reduction's mark
  EXPECT_THAT(error(hsdp), said("(HSDP)"));
  Recorder absurd;
  absurd.Mark("root_pre_forward");
  absurd.Collective("all_gather (a)", "c10d::_allgather_base_", {{63}, {32}});
  absurd.Mark("post_backward_reduce (a)");
  absurd.Mark("root_post_backward_callback");
  EXPECT_THAT(error(absurd), said("absurd sizes"));
  Recorder slow;  // a time stamp of another clock
  AddStep(slow);
  slow.events.back()["ts"] = 3e15;
  EXPECT_THAT(error(slow), said("a step of more than an hour"));
  Recorder endless;
  AddStep(endless);
  for (int i = 0; i < 20; ++i) {
    endless.Span("cuda_runtime", "cudaLaunchKernel", 115, 1, {{"correlation", i}});
    endless.Span("kernel", "gemm", 120, 9e11, {{"correlation", i}}, 99);
  }
  EXPECT_THAT(error(endless), said("a step of more than an hour"));
  const std::string whole = none.Text();
  EXPECT_THAT(std::string(ReadFsdpTrace(whole.substr(0, whole.size() / 2), "t").status().message()),
              said("t: "));
  EXPECT_THAT(std::string(ReadFsdpTrace("no JSON", "t").status().message()), said("t: "));
  EXPECT_THAT(std::string(ReadFsdpTrace(whole, "t", 16).status().message()),
              said("the limit is 16"));
  EXPECT_THAT(std::string(ReadFsdpTraceFile("/no/such").status().message()), HasSubstr("/no/such"));
}

TEST(FsdpTraceTest, MarksThatHoldEachOtherTakeNoTimeByTheirSquare) {
  Recorder r;
  r.Mark("root_pre_forward");
  for (int i = 0; i < 6000; ++i) r.Span("user_annotation", "FSDP::all_gather (a)", r.now, 1e6);
  for (int i = 0; i < 40000; ++i) r.Span("cpu_op", "c10d::x", r.now + i, 1);
  r.now += 2e6;
  r.Mark("post_backward_reduce (a)");
  r.Mark("root_post_backward_callback");
  const std::string text = r.Text();
  const std::clock_t begin = std::clock();
  EXPECT_THAT(std::string(ReadFsdpTrace(text, "t").status().message()),
              HasSubstr("marks that hold each other"));
  // Less than one; more than twenty where every mark looks through all that they hold.
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 5.0);
}

TEST(FsdpGraphTest, AStepBecomesAGraphOfGathersKernelsAndScatters) {
  Recorder r;
  AddStep(r);
  const FsdpStep step = Good(Read(r));
  const auto captured = GraphOfFsdpStep(step, {"t", false, 0});
  ASSERT_TRUE(captured.ok()) << captured.status();
  const Graph& graph = captured->graph;
  const Tags derived = DeriveTags(graph);
  std::vector<std::string> collectives;
  for (size_t c = 0; c < graph.collectives().size(); ++c) {
    const Collective& of = graph.collectives()[c];
    EXPECT_EQ(derived.of[c].tag, of.tag);
    EXPECT_EQ(derived.of[c].parameter, graph.string(of.parameter));
    collectives.push_back(absl::StrCat(of.kind == CollectiveKind::kAllGather ? "+" : "-",
                                       graph.string(of.parameter), " ", of.bytes));
  }
  // b and c share what is known of theirs; neither is gathered again.
  EXPECT_THAT(collectives,
              ElementsAre("+a.p0 192", "+a.p1 64", "+b.p0 32", "+c.p1 32", "-b.p0 32", "-c.p1 32",
                          "+a.p0 192", "+a.p1 64", "-a.p0 192", "-a.p1 64"));
  double us = 0.0;
  for (const double node : captured->costs.node_us) us += node;
  EXPECT_DOUBLE_EQ(us, 95.0);
  const auto kept = GraphOfFsdpStep(step, {"t", true, 0});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->graph.collectives().size(), 8U);
  EXPECT_EQ(CollectiveDirections(kept->graph)[3], Direction::kForward);
}

TEST(FsdpGraphTest, WhatIsReducedTwiceInAStepCountsOnce) {
  Recorder r;
  AddStep(r);
  r.events.erase(r.events.size() - 1);
  r.now -= 1;
  r.Reduce("a", 32);
  r.Mark("root_post_backward_callback");
  const FsdpStep step = Good(Read(r));
  const auto graph = GraphOfFsdpStep(step, {"t", false, 0});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->graph.collectives().size(), 10U);
}

}  // namespace
}  // namespace bucketd
