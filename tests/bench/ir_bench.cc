// Graphs in and through: import, wire, text, normalisation, encoding, digest, verifier, simulator;
// nodes and bytes a second, and the most memory that a step holds beside its input, a node.
//
//   build/bin/ir_bench                     synthetic graphs of 10k to 1M nodes, and captured ones
//   BUCKETD_TEST_DATA=tests/data           where the captured ones lie; without it they are left
//   out
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmark/benchmark.h"

#include "passes/cost/costs.h"
#include "passes/io/fx_json.h"
#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "passes/ir/graph_builder.h"
#include "passes/ir/normalize.h"
#include "passes/plan/plan.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "passes/text/bir.h"
#include "proto/graph.pb.h"

namespace {

// Of operator new, by one thread.
int64_t live_bytes = 0, peak_bytes = 0;

}  // namespace

// Not inlined, or the compiler sees malloc() meet delete and warns.
[[gnu::noinline]] void* operator new(size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) std::abort();
  live_bytes += static_cast<int64_t>(malloc_usable_size(block));
  peak_bytes = std::max(peak_bytes, live_bytes);
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  live_bytes -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace bucketd {
namespace {

constexpr int64_t kWidth = 64;
constexpr int32_t kRanks = 8;

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

// A training step's forward as far as its shape goes: per parameter a placeholder, cast,
// all-gather, wait and product, then thirteen pointwise ops and views.
class Synthetic {
 public:
  explicit Synthetic(int64_t nodes) : builder_("synthetic") {
    Must(builder_.AddGroup({"dp", 0, kRanks}));
    constexpr int64_t kPerParameter = 18;
    const int64_t parameters = nodes / kPerParameter;
    builder_.Reserve(nodes, 2 * nodes);
    NodeId x = Add(NodeKind::kPlaceholder, "placeholder", {}, {kRanks * kWidth, kWidth});
    for (int64_t i = 0; i < parameters; ++i) {
      module_ = absl::StrCat("layers.", i / 9, ".part", i % 9);
      const std::vector<int64_t> shard = {kWidth, kWidth};
      const std::vector<int64_t> whole = {kRanks * kWidth, kWidth};
      NodeId w = Add(NodeKind::kPlaceholder, "placeholder", {}, shard, absl::StrCat(module_, ".w"));
      w = Add(NodeKind::kCall, "aten._to_copy.default", {w}, shard);
      w = Add(NodeKind::kCollective, "_c10d_functional.all_gather_into_tensor.default", {w}, whole);
      w = Add(NodeKind::kWait, "_c10d_functional.wait_tensor.default", {w}, whole);
      x = Add(NodeKind::kCall, "aten.mm.default", {x, w}, whole);
      for (int64_t k = 5; k < kPerParameter; ++k) {
        const bool is_view = k % 3 == 0;
        std::vector<NodeId> inputs = {x};
        if (k % 3 == 1) inputs.push_back(w);
        x = Add(NodeKind::kCall, is_view ? "aten.view.default" : "aten.mul.Tensor", inputs, whole,
                "", is_view);
      }
    }
    slot_ = {x, SlotKind::kOutput, ""};
    Add(NodeKind::kOutput, "output", {x}, {});
  }

  Graph Finish() && { return Must(std::move(builder_).Build()); }

 private:
  NodeId Add(NodeKind kind, absl::string_view op, const std::vector<NodeId>& inputs,
             const std::vector<int64_t>& shape, absl::string_view parameter = "",
             bool is_view = false) {
    const std::string name = absl::StrCat("node_", next_++);
    const NodeSpec::Tensor tensor{DType::kBF16, shape};
    NodeSpec spec;
    spec.kind = kind;
    spec.op = op;
    spec.name = name;
    spec.module = module_;
    spec.inputs = inputs;
    if (kind != NodeKind::kOutput) spec.outputs = absl::MakeConstSpan(&tensor, 1);
    if (kind == NodeKind::kPlaceholder) {
      spec.role = parameter.empty() ? Role::kInput : Role::kParameter;
      spec.parameter = parameter;
    }
    if (kind == NodeKind::kCollective) spec.collective.kind = CollectiveKind::kAllGather;
    if (kind == NodeKind::kOutput) spec.slots = absl::MakeConstSpan(&slot_, 1);
    if (is_view) {
      spec.flags = kViewFlag;
      spec.alias_of = inputs;
    }
    spec.memory_bytes = kind == NodeKind::kCall && !is_view ? 1024 : 0;
    return Must(builder_.Add(spec));
  }

  GraphBuilder builder_;
  std::string module_;
  NodeSpec::Slot slot_;
  int64_t next_ = 0;
};

std::string Ids(absl::Span<const NodeId> ids) {
  return absl::StrCat("[", absl::StrJoin(ids, ","), "]");
}

// The graph as a captured-graph file.
std::string ToJson(const Graph& g) {
  std::string json =
      absl::StrCat(R"({"schema":1,"name":"synthetic","kind":"fw","world_size":)", kRanks,
                   R"(,"groups":{"0":{"ranks":[0,1,2,3,4,5,6,7],"mesh_dim":"dp"}},"mesh_shape":[)",
                   kRanks, R"(],"mesh_dim_names":["dp"],"gpus_per_node":8,"nodes":[)");
  for (NodeId n = 0; n < g.size(); ++n) {
    absl::StrAppend(&json, n == 0 ? "" : ",", R"({"id":)", n, R"(,"name":")", g.node_name(n),
                    R"(","op":")", g.op(n), R"(","inputs":)", Ids(g.inputs(n)), R"(,"outputs":[)");
    for (const TensorType& t : g.outputs(n)) {
      absl::StrAppend(&json, R"({"shape":[)", absl::StrJoin(g.shape(t), ","),
                      R"(],"dtype":"bfloat16","stride":[64,1],"bytes":)", t.bytes, "}");
    }
    absl::StrAppend(&json, R"(],"module":")", g.module(n), R"(","est_us":0.0)");
    if (g.is_view(n)) absl::StrAppend(&json, R"(,"is_view":true,"alias_of":)", Ids(g.alias_of(n)));
    if (g.kind(n) == NodeKind::kPlaceholder) {
      const bool is_param = g.role(n) == Role::kParameter;
      absl::StrAppend(&json, R"(,"desc_kind":")", is_param ? "param" : "input", R"(","fqn":")",
                      g.parameter(n), R"(")");
    }
    if (g.kind(n) == NodeKind::kCollective) {
      absl::StrAppend(&json,
                      R"(,"coll":{"kind":"ag","group":"0","group_size":8,"reduce_op":null})");
    }
    json += '}';
  }
  return json + "]}";
}

// What the benchmarks of one graph share; made on first use, kept for the others.
struct Material {
  Graph graph;
  std::string json, wire, text;
  Costs costs;
  Plan plan;  // program order
};

Material Make(Graph graph, std::string json) {
  v1::Graph message;
  GraphToProto(graph, message);
  Mesh mesh;
  for (const Group& group : graph.groups())
    mesh.dims.push_back({group.mesh_dim, group.size, 0, ""});
  Costs costs = Must(Costs::FromDeviceModel(graph, mesh, CostProfile()));
  std::string text = PrintBir(graph);
  Plan plan = ProgramOrder(graph);
  return {std::move(graph), std::move(json),  message.SerializeAsString(),
          std::move(text),  std::move(costs), std::move(plan)};
}

const Material& OfSize(int64_t nodes) {
  static auto& all = *new std::map<int64_t, std::unique_ptr<Material>>;
  std::unique_ptr<Material>& material = all[nodes];
  if (material == nullptr) {
    Graph graph = Synthetic(nodes).Finish();
    std::string json = ToJson(graph);
    material = std::make_unique<Material>(Make(std::move(graph), std::move(json)));
  }
  return *material;
}

void Count(benchmark::State& state, const Graph& graph, size_t bytes) {
  const int64_t rounds = state.iterations();
  state.SetItemsProcessed(rounds * graph.size());
  if (bytes != 0) state.SetBytesProcessed(rounds * static_cast<int64_t>(bytes));
  state.counters["nodes"] = graph.size();
}

void Build(benchmark::State& state) {
  int64_t footprint = 0;
  for (auto unused : state) {
    const Graph graph = Synthetic(state.range(0)).Finish();
    footprint = graph.memory_footprint();
  }
  const Graph& graph = OfSize(state.range(0)).graph;
  Count(state, graph, 0);
  state.counters["bytes_per_node"] = static_cast<double>(footprint) / graph.size();
}

void ImportJson(benchmark::State& state, const Material& m) {
  for (auto unused : state) benchmark::DoNotOptimize(Must(ReadCapturedGraph(m.json)).graph.size());
  Count(state, m.graph, m.json.size());
}

void FromBytes(benchmark::State& state, const Material& m) {
  for (auto unused : state) benchmark::DoNotOptimize(Must(GraphFromBytes(m.wire)).size());
  Count(state, m.graph, m.wire.size());
}

void NormalizeGraph(benchmark::State& state, const Material& m) {
  for (auto unused : state) benchmark::DoNotOptimize(Must(Normalize(m.graph)).graph.size());
  Count(state, m.graph, 0);
}

void Encode(benchmark::State& state, const Material& m) {
  size_t bytes = 0;
  for (auto unused : state) bytes = CanonicalEncoding(m.graph).size();
  Count(state, m.graph, bytes);
}

void EncodeAndDigest(benchmark::State& state, const Material& m) {
  for (auto unused : state) benchmark::DoNotOptimize(GraphDigest(m.graph));
  Count(state, m.graph, CanonicalEncoding(m.graph).size());
}

void ParseText(benchmark::State& state, const Material& m) {
  for (auto unused : state) benchmark::DoNotOptimize(Must(ParseBir(m.text)).graph.size());
  Count(state, m.graph, m.text.size());
}

void PrintText(benchmark::State& state, const Material& m) {
  for (auto unused : state) benchmark::DoNotOptimize(PrintBir(m.graph).size());
  Count(state, m.graph, m.text.size());
}

void Verify(benchmark::State& state, const Material& m) {
  for (auto unused : state) {
    if (!VerifyPlan(m.graph, m.plan).ok()) state.SkipWithError("not legal");
  }
  Count(state, m.graph, 0);
}

void SimulateStep(benchmark::State& state, const Material& m) {
  for (auto unused : state) {
    benchmark::DoNotOptimize(Simulate(m.graph, m.plan, m.costs).prediction.total_ps);
  }
  Count(state, m.graph, 0);
}

void Bound(benchmark::State& state, const Material& m) {
  for (auto unused : state) benchmark::DoNotOptimize(LowerBoundPs(m.graph, m.costs));
  Count(state, m.graph, 0);
}

using Case = void (*)(benchmark::State&, const Material&);
const std::pair<const char*, Case> kCases[] = {{"ImportJson", ImportJson},
                                               {"FromBytes", FromBytes},
                                               {"Normalize", NormalizeGraph},
                                               {"Encode", Encode},
                                               {"EncodeAndDigest", EncodeAndDigest},
                                               {"ParseText", ParseText},
                                               {"PrintText", PrintText},
                                               {"Verify", Verify},
                                               {"Simulate", SimulateStep},
                                               {"LowerBound", Bound}};

// The case's run, with the peak of what it held at once beside its input.
void RunCase(benchmark::State& state, Case run, const Material& m) {
  const int64_t before = live_bytes;
  peak_bytes = before;
  run(state, m);
  state.counters["peak_bytes_per_node"] = static_cast<double>(peak_bytes - before) / m.graph.size();
}

void Register() {
  for (int64_t nodes : {10'000, 100'000, 1'000'000}) {
    benchmark::RegisterBenchmark("Build", Build)->Arg(nodes)->Unit(benchmark::kMillisecond);
    for (const auto& [name, run] : kCases) {
      const Case run_case = run;
      benchmark::RegisterBenchmark(
          absl::StrCat(name, "/", nodes).c_str(),
          [run_case, nodes](benchmark::State& state) { RunCase(state, run_case, OfSize(nodes)); })
          ->Unit(benchmark::kMillisecond);
    }
  }
  const char* data = std::getenv("BUCKETD_TEST_DATA");
  if (data == nullptr) return;
  for (const char* name : {"llama3_8b_fsdp8.bw", "llama3_70b_fsdp64.bw"}) {
    const std::string path = absl::StrCat(data, "/graphs/", name, ".json.gz");
    const auto material =
        std::make_shared<Material>(Make(Must(ReadCapturedGraphFile(path)).graph, ""));
    benchmark::RegisterBenchmark(absl::StrCat("ImportFile/", name).c_str(),
                                 [path, material](benchmark::State& state) {
                                   for (auto unused : state) Must(ReadCapturedGraphFile(path));
                                   Count(state, material->graph, 0);
                                 })
        ->Unit(benchmark::kMillisecond);
    for (const auto& [case_name, run] : kCases) {
      if (run == ImportJson) continue;
      const Case run_case = run;
      benchmark::RegisterBenchmark(
          absl::StrCat(case_name, "/", name).c_str(),
          [run_case, material](benchmark::State& state) { RunCase(state, run_case, *material); })
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  bucketd::Register();
  benchmark::RunSpecifiedBenchmarks();
}
