// How long a plan takes: from a parsed graph to a verified plan, on one core.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"

#include "passes/base/status_macros.h"
#include "passes/io/fx_json.h"
#include "passes/ir/graph_builder.h"
#include "passes/planner.h"

namespace bucketd {
namespace {

constexpr int kNone = 0, kBlocks = 1, kGreedy = 2, kOverlap = 3, kScheduleOnly = 4, kAuto = 5;

PlanOptions Options(int mode) {
  static constexpr const char* kModes[] = {"none",    "transformer_block", "greedy",
                                           "overlap", "overlap",           "auto"};
  PlanOptions options;
  options.mode = kModes[mode];
  options.pre_bucketing = options.overlap_bucketing = mode != kScheduleOnly;
  return options;
}

void ReportPasses(benchmark::State& state, const Graph& graph, const std::vector<PassRun>& runs) {
  state.counters["nodes"] = graph.size();
  int64_t verify_ns = 0;
  for (const PassRun& run : runs) {
    verify_ns += run.verify_ns;
    state.counters[absl::StrCat(run.pass, "_ms")] = static_cast<double>(run.run_ns) * 1e-6;
  }
  state.counters["verify_ms"] = static_cast<double>(verify_ns) * 1e-6;
}

absl::Status PlanGraph(benchmark::State& state, const Graph& graph, const Costs& costs, int mode) {
  std::vector<PassRun> runs;
  for (auto unused : state) {
    runs.clear();
    ASSIGN_OR_RETURN(const Plan plan, MakePlan(graph, costs, Options(mode),
                                               [&](const PassRun& run, const PassContext&,
                                                   const Plan&) { runs.push_back(run); }));
    benchmark::DoNotOptimize(plan.order.data());
  }
  ReportPasses(state, graph, runs);
  return absl::OkStatus();
}

void SkipUnless(const absl::Status& status, benchmark::State& state) {
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

void PlanCaptured(benchmark::State& state, const std::string& name, int mode) {
  const auto plan = [&]() -> absl::Status {
    const char* data = std::getenv("BUCKETD_TEST_DATA");
    ASSIGN_OR_RETURN(const CapturedGraph captured,
                     ReadCapturedGraphFile(absl::StrCat(data != nullptr ? data : "tests/data",
                                                        "/graphs/", name, ".json.gz")));
    ASSIGN_OR_RETURN(const Costs costs,
                     Costs::FromFile(captured.graph, captured.costs, CostProfile()));
    return PlanGraph(state, captured.graph, costs, mode);
  };
  SkipUnless(plan(), state);
}

BENCHMARK_CAPTURE(PlanCaptured, llama3_8b_fsdp8_bw, "llama3_8b_fsdp8.bw", kBlocks)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_8b_fsdp8_bw_none, "llama3_8b_fsdp8.bw", kNone)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_8b_fsdp8_bw_greedy, "llama3_8b_fsdp8.bw", kGreedy)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_70b_fsdp64_bw_greedy, "llama3_70b_fsdp64.bw", kGreedy)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_8b_fsdp8_bw_overlap, "llama3_8b_fsdp8.bw", kOverlap)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_8b_fsdp8_bw_schedule, "llama3_8b_fsdp8.bw", kScheduleOnly)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_70b_fsdp64_bw_overlap, "llama3_70b_fsdp64.bw", kOverlap)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_70b_fsdp64_bw_schedule, "llama3_70b_fsdp64.bw",
                  kScheduleOnly)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_8b_fsdp8_fw, "llama3_8b_fsdp8.fw", kBlocks)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_70b_fsdp64_bw, "llama3_70b_fsdp64.bw", kBlocks)
    ->Unit(benchmark::kMillisecond);

// A forward of blocks of nine parameters, about 30 nodes each, which take their groups in turn.
class Synthetic {
 public:
  Synthetic(int32_t nodes, int32_t groups) : builder_("synthetic"), groups_(groups) {
    for (int32_t lane = 0; lane < groups; ++lane) {
      error_.Update(builder_.AddGroup({"dp", lane, 8}).status());
    }
    const int32_t blocks = std::max(2, nodes / 45);
    std::vector<NodeId> parameters;
    for (int32_t b = 0; b < blocks; ++b) {
      for (int j = 0; j < 9; ++j) {
        parameters.push_back(Placeholder(absl::StrCat("layers.", b, ".w", j), {8, 64}));
      }
    }
    NodeId h = Placeholder("", {64, 64});
    for (const NodeId parameter : parameters) {
      const NodeId weight = Gather(Call("aten._to_copy.default", {parameter}, {8, 64}, 0));
      h = Call("aten.mm.default", {h, weight}, {64, 64}, kComputeFlag);
    }
    const NodeSpec::Slot slot{h, SlotKind::kOutput, ""};
    NodeSpec spec = Of(NodeKind::kOutput, "output");
    spec.slots = absl::MakeConstSpan(&slot, 1);
    Add(spec, {h}, {});
  }

  absl::StatusOr<Graph> Build() && {
    RETURN_IF_ERROR(error_);
    return std::move(builder_).Build();
  }

 private:
  using Shape = std::vector<int64_t>;

  static NodeSpec Of(NodeKind kind, absl::string_view op) {
    NodeSpec spec;
    spec.kind = kind;
    spec.op = op;
    return spec;
  }
  NodeId Add(NodeSpec spec, const std::vector<NodeId>& inputs, const Shape& shape) {
    const NodeSpec::Tensor tensor{DType::kBF16, shape};
    spec.inputs = inputs;
    if (!shape.empty()) spec.outputs = absl::MakeConstSpan(&tensor, 1);
    const absl::StatusOr<NodeId> id = builder_.Add(spec);
    error_.Update(id.status());
    return id.value_or(0);
  }
  NodeId Placeholder(const std::string& fqn, const Shape& shape) {
    NodeSpec spec = Of(NodeKind::kPlaceholder, "placeholder");
    spec.role = fqn.empty() ? Role::kInput : Role::kParameter;
    spec.parameter = fqn;
    return Add(spec, {}, shape);
  }
  NodeId Call(absl::string_view op, const std::vector<NodeId>& inputs, const Shape& shape,
              uint8_t flags) {
    NodeSpec spec = Of(NodeKind::kCall, op);
    spec.flags = flags;
    spec.flops = flags != 0 ? 2 * 64 * 64 * 64 : 0;
    return Add(spec, inputs, shape);
  }
  NodeId Gather(NodeId input) {
    NodeSpec start = Of(NodeKind::kCollective, "all_gather");
    start.collective.kind = CollectiveKind::kAllGather;
    start.collective.group = gathers_++ % groups_;
    const std::vector<NodeId> started = {Add(start, {input}, {64, 64})};
    NodeSpec wait = Of(NodeKind::kWait, "wait_tensor");
    wait.alias_of = started;
    return Add(wait, started, {64, 64});
  }

  GraphBuilder builder_;
  const int32_t groups_;
  int32_t gathers_ = 0;
  absl::Status error_;
};

void PlanBuilt(benchmark::State& state, int64_t nodes, int64_t groups, int mode) {
  const auto plan = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const Graph graph,
                     Synthetic(static_cast<int32_t>(nodes), static_cast<int32_t>(groups)).Build());
    Mesh mesh;
    mesh.dims.push_back({"dp", 8, 0, ""});
    ASSIGN_OR_RETURN(const Costs costs, Costs::FromDeviceModel(graph, mesh, CostProfile()));
    state.SetComplexityN(graph.size());
    return PlanGraph(state, graph, costs, mode);
  };
  SkipUnless(plan(), state);
}
void PlanSynthetic(benchmark::State& state, int mode) { PlanBuilt(state, state.range(0), 1, mode); }
// The same nodes over more and more groups.
void PlanGroups(benchmark::State& state) { PlanBuilt(state, 10'000, state.range(0), kAuto); }
void Sizes(benchmark::internal::Benchmark* bench) {
  for (const int64_t nodes : {10'000, 100'000, 1'000'000}) bench->Arg(nodes);
  bench->Unit(benchmark::kMillisecond)->Complexity(benchmark::oNLogN);
}
BENCHMARK_CAPTURE(PlanSynthetic, blocks, kBlocks)->Apply(Sizes);
BENCHMARK_CAPTURE(PlanSynthetic, greedy, kGreedy)->Apply(Sizes);
BENCHMARK_CAPTURE(PlanSynthetic, overlap, kOverlap)->Apply(Sizes);
BENCHMARK_CAPTURE(PlanSynthetic, schedule, kScheduleOnly)->Apply(Sizes);
// Small graphs get more decodes: what is near linear is the time from 10,000 nodes on.
BENCHMARK_CAPTURE(PlanSynthetic, auto_mode, kAuto)
    ->RangeMultiplier(10)
    ->Range(1'000, 100'000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oAuto);
BENCHMARK(PlanGroups)->Arg(1)->Arg(100)->Arg(1'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_8b_fsdp8_bw_auto, "llama3_8b_fsdp8.bw", kAuto)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanCaptured, llama3_70b_fsdp64_bw_auto, "llama3_70b_fsdp64.bw", kAuto)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace bucketd

BENCHMARK_MAIN();
