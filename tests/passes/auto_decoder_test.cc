// The decoder's clocks and memory against the simulator, its orders against the verifier.
#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "passes/auto/decoder.h"
#include "passes/auto/least_rows.h"
#include "passes/auto/problem.h"
#include "passes/auto/range_max.h"
#include "passes/auto/tuning.h"
#include "passes/io/profile_json.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/contracted.h"
#include "tests/passes/generated_steps.h"
#include "tests/passes/ladder.h"

namespace bucketd::testing {
namespace {

using search::Decoded;
using search::Decoder;
using search::Figures;
using search::Form;
using search::Partition;
using search::Problem;
using search::Settings;

search::Settings RandomSettings(Random& random, const Problem& problem) {
  int64_t alpha = 1;
  for (const search::Transfer& t : problem.transfers) alpha = std::max(alpha, t.alpha_ps);
  const std::vector<int64_t> times = {0,          alpha / 2,   alpha,
                                      10 * alpha, 100 * alpha, search::kForever};
  Settings s;
  s.slack_ps = random.OneOf(times);
  s.gather_cap_ps = random.OneOf(times);
  s.reduce_cap_ps = random.OneOf(times);
  s.late_ps = random.OneOf(times);
  s.lag = random.OneOf(std::vector<int32_t>{0, 500, 1000});
  s.batch_ps = random.OneOf(times);
  s.wire_weight = random.OneOf(std::vector<int32_t>{20, 600, 1000});
  s.compute_weight = random.OneOf(std::vector<int32_t>{20, 400, 1000});
  s.tail_queue_ps = random.OneOf(times) / 1000;
  s.packed_memory = random.OneIn(3);
  return s;
}

// Decodes the same problem several times in one decoder, which must forget everything in between.
void ExpectExact(const Contracted& setting, Random& random, int decodes, const std::string& what) {
  const Graph& graph = setting.graph;
  Decoder decoder(setting.problem);
  for (int k = 0; k < decodes; ++k) {
    const Settings settings = RandomSettings(random, setting.problem);
    const Partition partition = RandomPartition(random, setting.problem);
    const int64_t cap = setting.context.program_order.peak_bytes * (95 + random.Below(30)) / 100;
    const Decoded& decoded = decoder.Decode(settings, cap, random.OneIn(2) ? &partition : nullptr);
    const Plan plan = setting.PlanOf(decoded);
    const absl::Status legal = VerifyPlan(graph, plan);
    ASSERT_TRUE(legal.ok()) << what << " decode " << k << ": " << legal;
    const Prediction truth = Simulate(graph, plan, setting.costs).prediction;
    ASSERT_EQ(decoded.figures.total_ps, truth.total_ps) << what << " decode " << k;
    ASSERT_EQ(decoded.figures.peak_bytes, truth.peak_bytes) << what << " decode " << k;
  }
}

search::Units UnitsOf(const Problem& problem) {
  search::Units units{1, 1, problem.total_ps()};
  for (const search::Transfer& t : problem.transfers) {
    units.alpha_ps = std::max(units.alpha_ps, t.alpha_ps);
    units.longest_ps = std::max(units.longest_ps, t.alpha_ps + t.wire_ps);
  }
  return units;
}

TEST(Decoder, ItsTimeAndMemoryAreTheSimulatorsOnEveryCapturedGraphAndProfile) {
  Random random(1);
  const std::vector<std::string> names = CapturedNames();
  for (size_t i = 0; i < names.size(); i += kStride) {
    const CapturedGraph captured = Captured(names[i]);
    for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
      const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(costs.ok()) << costs.status();
      Contracted setting(captured.graph, *costs);
      ExpectExact(setting, random, captured.graph.size() > 3000 ? 2 : 8,
                  names[i] + " " + profile.name);
    }
  }
}

TEST(Decoder, ItsTimeAndMemoryAreTheSimulatorsOnRandomGraphs) {
  for (uint32_t seed = 0; seed < Seeds(400); ++seed) {
    const Graph graph = RandomStep(seed).Build(seed % 10 != 9);
    Mesh mesh;
    for (const Group& group : graph.groups())
      mesh.dims.push_back({group.mesh_dim, group.size, 0, ""});
    CostProfile profile;
    profile.name = "test";
    profile.host_us_per_kernel = seed % 3;
    profile.host_us_per_collective = seed % 2;
    profile.overlap_slowdown = seed % 5 == 0 ? 0.3 : 0.08;
    const absl::StatusOr<Costs> costs = Costs::FromDeviceModel(graph, mesh, profile);
    ASSERT_TRUE(costs.ok()) << costs.status();
    PlanOptions options;
    options.numerics = static_cast<Numerics>(1 + seed % 3);
    options.backend = seed % 2 == 0 ? "gloo" : "nccl";
    Random random(seed);
    Contracted setting(graph, *costs, options);
    ExpectExact(setting, random, 6, "seed " + std::to_string(seed));
  }
}

TEST(Decoder, ASmallerCapGivesAPlanWithLessMemory) {
  const CapturedGraph captured = Captured("llama3_8b_fsdp8.bw");
  const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, {});
  ASSERT_TRUE(costs.ok());
  Contracted setting(captured.graph, *costs);
  Decoder decoder(setting.problem);
  Settings eager;
  eager.slack_ps = search::kForever;
  const int64_t before = setting.context.program_order.peak_bytes;
  const Figures loose = decoder.Decode(eager, 2 * before, nullptr).figures;
  const Figures tight = decoder.Decode(eager, before, nullptr).figures;
  EXPECT_GT(loose.peak_bytes, before);
  EXPECT_LT(tight.peak_bytes, loose.peak_bytes);
}

// Below the first reduction's result there is only the last reduction, so what comes last is leaf
// work, as a forward's last layer is.
TEST(Decoder, BehindTheMainChainsEndAGatherStillWaitsForMemory) {
  Net net;
  const auto product = [&](std::string name, NodeId a, NodeId b, Shape shape) {
    return net.Call(std::move(name), {a, b}, std::move(shape), 0, "aten.mm.default");
  };
  const NodeId square = net.Input("square", {64, 64});
  const NodeId tall = net.Input("tall", {1024, 64}), flat = net.Input("flat", {64, 1024});
  NodeId y = net.Reduce("first", product("a", net.Input("x", {64, 64}), square, {64, 64}));
  for (int i = 0; i < 40; ++i) y = product(absl::StrCat("c", i), y, square, {64, 64});
  y = product("narrow", flat, product("wide", tall, y, {1024, 64}), {64, 64});
  const NodeId weight = net.Gather("w", net.Parameter("w", {8, 64}));
  net.Out(net.Reduce("last", product("b", y, weight, {64, 64})), SlotKind::kOutput);
  const Graph graph = net.Build();
  StatedCosts stated;
  for (NodeId n = 0; n < graph.size(); ++n) {
    stated.node_us.push_back(graph.kind(n) == NodeKind::kCall ? 10.0 : 0.0);
  }
  stated.links.assign(graph.collectives().size(), {1.0, 1e11, false});
  const absl::StatusOr<Costs> costs = Costs::FromFile(graph, stated, {});
  ASSERT_TRUE(costs.ok()) << costs.status();
  Contracted setting(graph, *costs);
  ASSERT_EQ(setting.problem.transfer(0).use, search::Use::kInline);
  ASSERT_TRUE(absl::c_linear_search(setting.problem.is_leaf, true));
  Decoder decoder(setting.problem);
  Settings eager;
  eager.slack_ps = search::kForever;
  const int64_t before = setting.context.program_order.peak_bytes;
  EXPECT_LE(decoder.Decode(eager, before, nullptr).figures.peak_bytes, before);
  // Also in a bucket that was decided beforehand.
  Partition alone;
  for (const search::Transfer& t : setting.problem.transfers) {
    const bool is_inline = t.use == search::Use::kInline;
    alone.bucket_of.push_back(is_inline ? -1 : static_cast<int32_t>(alone.size_of.size()));
    if (is_inline) continue;
    alone.form_of.push_back(Form::kGrouped);
    alone.size_of.push_back(1);
  }
  EXPECT_LE(decoder.Decode(eager, before, &alone).figures.peak_bytes, before);
  // What does not fit is said where it is in the order, for whoever leaves memory free there.
  decoder.Decode(eager, before / 2, nullptr);
  ASSERT_FALSE(decoder.over().empty());
  EXPECT_LT(decoder.over().back().at, setting.problem.size());
  // With memory for both it goes early.
  EXPECT_GT(decoder.Decode(eager, 2 * before, nullptr).figures.peak_bytes, before);
}

// What repairs have to mend must be little: where every start is far over the limit, nothing but
// another mode's plan is left to begin with.
TEST(Decoder, FewStartsAreFarOverTheLimitWhereMemoryBinds) {
  int decodes = 0, far_over = 0;
  for (uint32_t seed = 1; seed <= Seeds(3); ++seed) {
    for (size_t kind = 0; kind < GeneratedKinds().size(); ++kind) {
      const CapturedGraph step = GeneratedStep(kind, seed, false);
      for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
        const absl::StatusOr<Costs> costs = Costs::FromFile(step.graph, step.costs, profile);
        ASSERT_TRUE(costs.ok()) << costs.status();
        Contracted setting(step.graph, *costs);
        const int64_t peak = setting.context.program_order.peak_bytes, limit = peak + peak / 20;
        Decoder decoder(setting.problem);
        for (const search::Start& start : search::StartsOf(UnitsOf(setting.problem))) {
          const Figures figures = decoder.Decode(start.settings, limit, nullptr).figures;
          ++decodes;
          if (figures.peak_bytes > limit + limit / 50) ++far_over;
        }
      }
    }
  }
  EXPECT_LT(far_over, decodes / 8) << decodes;  // of 1,200, 125
}

// Eight gradients that end together, each all-reduced, while memory is at its peak.
TEST(Decoder, AllReducesGoTogetherAsFarAsMemoryHoldsThem) {
  Net net;
  NodeId h = net.Input("x", {64, 64});
  for (int i = 0; i < 8; ++i) {
    const std::string number = absl::StrCat(i);
    const NodeId gradient = net.Call("g" + number, {h}, {64, 64}, kComputeFlag);
    net.Out(net.Reduce(number, gradient), SlotKind::kParameterGradient);
  }
  for (int i = 0; i < 4; ++i) h = net.Call(absl::StrCat("c", i), {h}, {64, 64}, kComputeFlag);
  net.Out(h, SlotKind::kOutput);
  const Graph graph = net.Build();
  Contracted setting(graph);
  Decoder decoder(setting.problem);
  Settings at_the_end;
  at_the_end.batch_ps = search::kForever;
  at_the_end.wire_weight = 1000;  // packed, where memory holds that
  at_the_end.compute_weight = 1;
  const int64_t each = setting.problem.transfer(0).out_bytes;
  const int64_t before = setting.context.program_order.peak_bytes;
  for (int more = 1; more < 8; ++more) {
    const Decoded& decoded = decoder.Decode(at_the_end, before + more * each, nullptr);
    EXPECT_LE(decoded.figures.peak_bytes, before + more * each) << more;
    size_t largest = 0;
    for (const search::Batch& batch : decoded.batches) {
      largest = std::max(largest, batch.members.size());
      if (batch.members.size() == 1) continue;
      EXPECT_NE(batch.form, Form::kGrouped) << more;
    }
    EXPECT_GE(largest, Index(more)) << "of what memory holds nothing is left free";
  }
}

// A backward that gathers weights anew, each as large as the gradient before it.
TEST(Decoder, AReductionMakesRoomForTheGatherThatTheStepWaitsFor) {
  Net net;
  NodeId h = net.Input("x", {64, 64});
  for (int i = 0; i < 6; ++i) {
    const std::string number = absl::StrCat(i);
    const NodeId activation = net.Input("a" + number, {64, 64});
    const NodeId weight = net.Gather(number, net.Parameter("w" + number, {32, 64}));
    const NodeId next = net.Call("gx" + number, {h, weight}, {64, 64}, kComputeFlag);
    const NodeId gradient = net.Call("gw" + number, {h, activation}, {256, 64}, kComputeFlag);
    net.Out(net.Scatter(number, gradient), SlotKind::kParameterGradient);
    h = next;
  }
  // So that the layers are no leaf work.
  for (int i = 0; i < 40; ++i) h = net.Call(absl::StrCat("c", i), {h}, {64, 64}, kComputeFlag);
  net.Out(h, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = CostsOf(graph);
  Contracted setting(graph, costs);
  ASSERT_EQ(setting.problem.transfer(0).use, search::Use::kRoot);
  ASSERT_EQ(setting.problem.transfer(1).use, search::Use::kSink);
  Decoder decoder(setting.problem);
  const int64_t before = setting.context.program_order.peak_bytes;
  Settings eager;
  eager.slack_ps = search::kForever;
  for (const Settings& settings : {Settings(), eager}) {
    EXPECT_LE(decoder.Decode(settings, before, nullptr).figures.peak_bytes, before);
  }
}

// Gathers that keep their wire busy, and a gradient that is there meanwhile.
TEST(Decoder, AReductionGoesBeforeGathersThatAreDueIfItIsTold) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  std::vector<NodeId> weights;
  for (int i = 0; i < 4; ++i) {
    const std::string number = absl::StrCat(i);
    weights.push_back(net.Gather(number, net.Parameter("w" + number, {4096, 64})));
  }
  const NodeId gradient = net.Call("gw", {x}, {256, 64}, kComputeFlag);
  net.Out(net.Scatter("g", gradient), SlotKind::kParameterGradient);
  NodeId h = gradient;
  for (int i = 0; i < 40; ++i) h = net.Call(absl::StrCat("c", i), {h}, {64, 64}, kComputeFlag);
  for (const NodeId weight : weights) h = net.Call("mm", {h, weight}, {64, 64}, kComputeFlag);
  net.Out(h, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = CostsOf(graph);
  Contracted setting(graph, costs);
  ASSERT_EQ(setting.problem.transfer(0).use, search::Use::kRoot);
  ASSERT_EQ(setting.problem.transfer(4).use, search::Use::kSink);
  Decoder decoder(setting.problem);
  Settings settings;
  settings.slack_ps = search::kForever;
  settings.gather_cap_ps = settings.batch_ps = 0;
  const auto gathers_before = [&] {
    const Decoded& decoded = decoder.Decode(settings, search::kNever, nullptr);
    int before = 0;
    for (const search::Action& action : decoded.order) {
      if (action.kind != search::Action::Kind::kLaunch) continue;
      if (decoded.batches[static_cast<size_t>(action.id)].members[0] == 4) break;
      ++before;
    }
    return before;
  };
  EXPECT_EQ(gathers_before(), 4);
  settings.sinks_first = true;
  EXPECT_EQ(gathers_before(), 1);
}

TEST(Decoder, AnOrderThatIsGivenUpWouldHaveTakenLongerAndOneThatIsNotIsTheSame) {
  for (uint32_t seed = 0; seed < Seeds(100); ++seed) {
    const Graph graph = RandomStep(seed).Build();
    const Costs costs = CostsOf(graph);
    Contracted setting(graph, costs);
    Decoder decoder(setting.problem);
    Random random(seed);
    Settings settings = RandomSettings(random, setting.problem);
    settings.gather_cap_ps = settings.reduce_cap_ps = 0;
    const int64_t cap = 2 * setting.context.program_order.peak_bytes;
    const Figures whole = decoder.Decode(settings, cap, nullptr).figures;
    const int64_t placed = decoder.placed();
    EXPECT_EQ(decoder.Decode(settings, cap, nullptr, whole.total_ps).figures, whole) << seed;
    for (const int64_t cutoff : {whole.total_ps - 1, whole.total_ps / 2, int64_t{0}}) {
      const int64_t sure = decoder.Decode(settings, cap, nullptr, cutoff).figures.total_ps;
      EXPECT_GT(sure, cutoff) << seed;
      EXPECT_LE(sure, whole.total_ps) << seed;
    }
    EXPECT_LT(decoder.placed(), placed) << seed;  // given up at once
  }
}

TEST(Decoder, ItSaysWhereMemoryIsOverAndReservingThereHelps) {
  int over = 0, helped = 0;
  for (uint32_t seed = 0; seed < Seeds(200); ++seed) {
    const Graph graph = RandomStep(seed).Build();
    const Costs costs = CostsOf(graph);
    Contracted setting(graph, costs);
    Decoder decoder(setting.problem);
    Settings settings;
    settings.slack_ps = search::kForever;
    const int64_t cap = setting.context.program_order.peak_bytes;
    const Figures before = decoder.Decode(settings, cap, nullptr).figures;
    ASSERT_EQ(before.peak_bytes > cap, !decoder.over().empty()) << seed;
    if (decoder.over().empty()) continue;
    ++over;
    int64_t most = 0;
    std::vector<search::Reserve> reserves;
    for (const search::Overflow& o : decoder.over()) {
      most = std::max(most, o.bytes);
      reserves.push_back({std::max(0, o.at - 8), std::min(setting.problem.size(), o.at + 8), most});
    }
    EXPECT_EQ(most, before.peak_bytes - cap) << seed;
    const Figures after = decoder.Decode(settings, cap, nullptr, search::kNever, reserves).figures;
    if (after.peak_bytes < before.peak_bytes) ++helped;
    EXPECT_EQ(decoder.Decode(settings, cap, nullptr).figures, before);  // nothing stays reserved
  }
  EXPECT_GT(over, Share(10));
  EXPECT_GT(helped, over / 10);
}

// A forward and backward of so many layers, each over a group of its own.
Graph StepOfGroups(int layers, bool inline_too) {
  Net net(8);
  NodeId h = net.Input("x", {64, 64});
  std::vector<NodeId> weights, gradients;
  for (int i = 0; i < layers; ++i) {
    const std::string number = absl::StrCat(i);
    net.OnGroup(net.AddGroup("dp", 8, i + 1));
    const NodeId p = net.Input("p" + number, {8, 64}, Role::kParameter, "layers." + number);
    weights.push_back(net.Gather("g" + number, p));
    h = net.Call("mm" + number, {h, weights.back()}, {64, 64}, kComputeFlag);
    if (inline_too && i % 2 == 0) h = net.Reduce("tp" + number, h);
  }
  for (int i = layers; i-- > 0;) {
    const std::string number = absl::StrCat(i);
    net.OnGroup(i + 1);
    const NodeId grad = net.Call("gw" + number, {h, weights[Index(i)]}, {64, 64}, kComputeFlag);
    gradients.push_back(net.Scatter("s" + number, grad));
    h = net.Call("gx" + number, {h, weights[Index(i)]}, {64, 64}, kComputeFlag);
  }
  net.Out(h, SlotKind::kOutput);
  for (const NodeId g : gradients) net.Out(g, SlotKind::kParameterGradient);
  return net.Build();
}

// Were every boundary to look at every group, that were thousands a leader.
TEST(Decoder, LooksAtFewGroupsHoweverManyThereAre) {
  constexpr int kLayers = 2'000, kMostVisits = 60;  // a leader: some of each level of a row
  for (const bool inline_too : {false, true}) {
    const Graph graph = StepOfGroups(kLayers, inline_too);
    const Costs costs = CostsOf(graph);
    Contracted setting(graph, costs);
    const Problem& problem = setting.problem;
    Decoder decoder(problem);
    const int64_t peak = setting.context.program_order.peak_bytes;
    for (const search::Start& start : search::StartsOf(UnitsOf(problem))) {
      for (const int64_t cap : {peak, 2 * peak}) {
        decoder.Decode(start.settings, cap, nullptr);
        EXPECT_EQ(decoder.placed(), problem.size()) << start.name;
        EXPECT_LT(decoder.visits(), kMostVisits * decoder.placed()) << start.name << " " << cap;
      }
    }
  }
}

TEST(LeastRows, FindTheFirstLikeAPlainRow) {
  Random random(11);
  search::LeastRows<2> rows;
  for (int size = 1; size < 40; ++size) {
    rows.Reset(Index(size), {100, 100});
    std::vector<std::array<int64_t, 2>> plain(Index(size), {100, 100});
    for (int k = 0; k < 100; ++k) {
      const size_t at = Index(random.Below(size)), number = Index(random.Below(2));
      rows.Set(at, number, plain[at][number] = random.Below(101));
      const int64_t a = random.Below(100), b = random.Below(100);
      const auto small = [&](const std::array<int64_t, 2>& row) {
        return row[0] <= a && row[1] <= b;
      };
      for (size_t from = 0; from <= plain.size(); ++from) {
        const auto first =
            std::find_if(plain.begin() + static_cast<int64_t>(from), plain.end(), small);
        const size_t expected =
            first == plain.end() ? SIZE_MAX : static_cast<size_t>(first - plain.begin());
        ASSERT_EQ(rows.First(from, small), expected) << size << " from " << from;
      }
      int64_t least = 100;
      for (const std::array<int64_t, 2>& row : plain) least = std::min(least, row[number]);
      ASSERT_EQ(rows.least()[number], least);
    }
  }
}

TEST(NumberSet, IsASetWhoseSmallestIsAtHand) {
  Random random(3);
  NumberSet numbers;
  for (const int size : {1, 64, 65, 5000, 300'000}) {
    numbers.Reset(size);
    std::set<int32_t> plain;
    for (int k = 0; k < 4000; ++k) {
      const int32_t i = random.Below(size);
      if (random.OneIn(2)) {
        numbers.Insert(i);
        plain.insert(i);
      } else if (plain.empty() || random.OneIn(2)) {
        // Often one that is there.
        const auto at_least = plain.lower_bound(i);
        const int32_t gone = at_least == plain.end() ? i : *at_least;
        numbers.Erase(gone);
        plain.erase(gone);
      } else {
        ASSERT_EQ(numbers.PopFront(), *plain.begin());
        plain.erase(plain.begin());
      }
      ASSERT_EQ(numbers.empty(), plain.empty());
      if (!plain.empty()) {
        ASSERT_EQ(numbers.front(), *plain.begin());
      }
      const auto next = plain.lower_bound(i);
      ASSERT_EQ(numbers.Next(i), next == plain.end() ? -1 : *next);
    }
    EXPECT_EQ(numbers.Next(size), -1);
  }
}

TEST(RangeMax, AddsAndAsksLikeAPlainRow) {
  Random random(7);
  for (int size = 1; size < 40; ++size) {
    std::vector<int64_t> plain;
    for (int i = 0; i < size; ++i) plain.push_back(random.Below(100));
    const std::vector<int64_t> untouched = plain;
    search::RangeMax row(plain);
    for (int k = 0; k < 50; ++k) {
      const int first = random.Below(size + 1), last = random.Below(size + 1);
      const int value = random.Below(50) - 20;
      row.Add(first, last, value);
      for (int i = first; i < last; ++i) plain[static_cast<size_t>(i)] += value;
      const int from = random.Below(size + 1), to = random.Below(size + 1);
      int64_t most = search::RangeMax::kLowest;
      for (int i = from; i < to; ++i) most = std::max(most, plain[static_cast<size_t>(i)]);
      ASSERT_EQ(row.Max(from, to), most);
    }
    const int64_t whole = *std::max_element(untouched.begin(), untouched.end());
    row.Reset();
    EXPECT_EQ(row.Max(0, size), whole);
  }
}

}  // namespace
}  // namespace bucketd::testing
