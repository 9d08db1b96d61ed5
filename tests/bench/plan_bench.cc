// How long a plan takes: from a parsed graph to a verified plan, on one core.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"

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

void PlanGraph(benchmark::State& state, const Graph& graph, const Costs& costs,
               const PlanOptions& options) {
  std::vector<PassRun> runs;
  for (auto unused : state) {
    runs.clear();
    absl::StatusOr<Plan> plan =
        MakePlan(graph, costs, options,
                 [&](const PassRun& run, const PassContext&, const Plan&) { runs.push_back(run); });
    if (!plan.ok()) {
      state.SkipWithError(plan.status().ToString().c_str());
      return;
    }
    benchmark::DoNotOptimize(plan->order.data());
  }
  ReportPasses(state, graph, runs);
}

void PlanCaptured(benchmark::State& state, const std::string& name, int mode) {
  const char* data = std::getenv("BUCKETD_TEST_DATA");
  const std::filesystem::path file =
      std::filesystem::path(data != nullptr ? data : "tests/data") / "graphs" / (name + ".json.gz");
  absl::StatusOr<CapturedGraph> captured = ReadCapturedGraphFile(file.string());
  if (!captured.ok()) {
    state.SkipWithError(captured.status().ToString().c_str());
    return;
  }
  const absl::StatusOr<Costs> costs =
      Costs::FromFile(captured->graph, captured->costs, CostProfile());
  if (!costs.ok()) {
    state.SkipWithError(costs.status().ToString().c_str());
    return;
  }
  PlanGraph(state, captured->graph, *costs, Options(mode));
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
  explicit Synthetic(int32_t nodes, int32_t groups = 1) : builder_("synthetic"), groups_(groups) {
    for (int32_t lane = 0; lane < groups; ++lane) {
      Check(builder_.AddGroup({"dp", lane, 8}).status());
    }
    const int32_t blocks = std::max(2, nodes / 45);
    std::vector<NodeId> parameters;
    for (int32_t b = 0; b < blocks; ++b) {
      for (int j = 0; j < 9; ++j) {
        parameters.push_back(Placeholder(absl::StrCat("layers.", b, ".w", j), {8, 64}));
      }
    }
    NodeId h = Placeholder("", {64, 64});
    for (size_t i = 0; i < parameters.size(); ++i) {
      const NodeId cast = Call("aten._to_copy.default", {parameters[i]}, {8, 64}, 0);
      h = Call("aten.mm.default", {h, Gather(cast)}, {64, 64}, kComputeFlag);
    }
    const NodeSpec::Slot slot{h, SlotKind::kOutput, ""};
    NodeSpec spec;
    spec.kind = NodeKind::kOutput;
    spec.op = "output";
    const std::vector<NodeId> inputs = {h};
    spec.inputs = inputs;
    spec.slots = absl::MakeConstSpan(&slot, 1);
    Add(spec);
  }

  absl::StatusOr<Graph> Build() && {
    if (!error_.ok()) return error_;
    return std::move(builder_).Build();
  }

 private:
  using Shape = std::vector<int64_t>;

  void Check(const absl::Status& status) {
    if (error_.ok()) error_ = status;
  }
  NodeId Add(const NodeSpec& spec) {
    const absl::StatusOr<NodeId> id = builder_.Add(spec);
    Check(id.status());
    return id.ok() ? *id : 0;
  }
  NodeId Placeholder(const std::string& fqn, const Shape& shape) {
    const NodeSpec::Tensor tensor{DType::kBF16, shape};
    NodeSpec spec;
    spec.kind = NodeKind::kPlaceholder;
    spec.op = "placeholder";
    spec.role = fqn.empty() ? Role::kInput : Role::kParameter;
    spec.parameter = fqn;
    spec.outputs = absl::MakeConstSpan(&tensor, 1);
    return Add(spec);
  }
  NodeId Call(absl::string_view op, const std::vector<NodeId>& inputs, const Shape& shape,
              uint8_t flags) {
    const NodeSpec::Tensor tensor{DType::kBF16, shape};
    NodeSpec spec;
    spec.kind = NodeKind::kCall;
    spec.op = op;
    spec.flags = flags;
    spec.flops = flags != 0 ? 2 * 64 * 64 * 64 : 0;
    spec.inputs = inputs;
    spec.outputs = absl::MakeConstSpan(&tensor, 1);
    return Add(spec);
  }
  NodeId Gather(NodeId input) {
    const Shape shape = {64, 64};
    const NodeSpec::Tensor tensor{DType::kBF16, shape};
    NodeSpec spec;
    spec.kind = NodeKind::kCollective;
    spec.op = "all_gather";
    spec.collective.kind = CollectiveKind::kAllGather;
    spec.collective.group = gathers_++ % groups_;
    const std::vector<NodeId> inputs = {input};
    spec.inputs = inputs;
    spec.outputs = absl::MakeConstSpan(&tensor, 1);
    const std::vector<NodeId> start = {Add(spec)};
    spec.kind = NodeKind::kWait;
    spec.op = "wait_tensor";
    spec.collective = {};
    spec.inputs = start;
    spec.alias_of = start;
    return Add(spec);
  }

  GraphBuilder builder_;
  const int32_t groups_;
  int32_t gathers_ = 0;
  absl::Status error_;
};

void PlanBuilt(benchmark::State& state, const absl::StatusOr<Graph>& graph, int mode) {
  if (!graph.ok()) {
    state.SkipWithError(graph.status().ToString().c_str());
    return;
  }
  Mesh mesh;
  mesh.dims.push_back({"dp", 8, 0, ""});
  const absl::StatusOr<Costs> costs = Costs::FromDeviceModel(*graph, mesh, CostProfile());
  if (!costs.ok()) {
    state.SkipWithError(costs.status().ToString().c_str());
    return;
  }
  PlanGraph(state, *graph, *costs, Options(mode));
  state.SetComplexityN(graph->size());
}
void PlanSynthetic(benchmark::State& state, int mode) {
  PlanBuilt(state, Synthetic(static_cast<int32_t>(state.range(0))).Build(), mode);
}
// The same nodes over more and more groups.
void PlanGroups(benchmark::State& state) {
  PlanBuilt(state, Synthetic(10'000, static_cast<int32_t>(state.range(0))).Build(), kAuto);
}
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
