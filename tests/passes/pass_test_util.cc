#include "tests/passes/pass_test_util.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "passes/planner.h"
#include "tests/passes/test_data.h"

namespace bucketd::testing {
namespace {

// A test cannot go on without what this holds.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    ADD_FAILURE() << value.status();
    std::abort();
  }
  return *std::move(value);
}

bool IsMatrixProduct(absl::string_view name) {
  return name.substr(0, 2) == "mm" || name.substr(0, 2) == "gx" || name.substr(0, 2) == "gw";
}

}  // namespace

Net::Net(int32_t group_size) : builder_("net") { AddGroup("dp", group_size); }

Net& Net::In(std::string module) {
  module_ = std::move(module);
  return *this;
}
Net& Net::Going(Direction direction) {
  direction_ = direction;
  return *this;
}
Net& Net::OnGroup(GroupId group) {
  group_ = group;
  return *this;
}
Net& Net::Typed(DType dtype) {
  dtype_ = dtype;
  return *this;
}

GroupId Net::AddGroup(std::string mesh_dim, int32_t size, int32_t lane) {
  sizes_.push_back(size);
  return Must(builder_.AddGroup({std::move(mesh_dim), lane, size}));
}

NodeId Net::Add(NodeSpec spec, const std::string& name, const std::vector<NodeId>& inputs,
                const Shape* shape) {
  spec.name = name;
  spec.module = spec.kind == NodeKind::kPlaceholder ? absl::string_view() : module_;
  spec.direction = direction_;
  spec.inputs = inputs;
  std::vector<NodeSpec::Tensor> tensors;
  if (shape != nullptr) tensors.push_back({dtype_, *shape});
  spec.outputs = tensors;
  shapes_.push_back(shape != nullptr ? *shape : Shape());
  return Must(builder_.Add(spec));
}

NodeId Net::Input(std::string name, Shape shape, Role role, std::string fqn) {
  NodeSpec spec;
  spec.kind = NodeKind::kPlaceholder;
  spec.op = "placeholder";
  spec.role = role;
  spec.parameter = fqn;
  return Add(spec, name, {}, &shape);
}

NodeId Net::Parameter(std::string fqn, Shape shape) {
  return Input(absl::StrCat("p_", fqn), std::move(shape), Role::kParameter, fqn);
}

NodeId Net::Call(std::string name, std::vector<NodeId> inputs, Shape shape, uint8_t flags,
                 std::string op) {
  NodeSpec spec;
  spec.kind = NodeKind::kCall;
  spec.op = IsMatrixProduct(name) ? absl::string_view("aten.mm.default") : op;
  spec.flags = flags;
  if (IsMatrixProduct(name)) {
    spec.flags |= kComputeFlag;
    spec.flops = 1'000'000'000;
  }
  return Add(spec, name, inputs, &shape);
}

NodeId Net::View(std::string name, NodeId input) {
  NodeSpec spec;
  spec.kind = NodeKind::kCall;
  spec.op = "aten.view.default";
  spec.flags = kViewFlag;
  const std::vector<NodeId> alias = {input};
  spec.alias_of = alias;
  const Shape same = shape(input);
  return Add(spec, name, {input}, &same);
}

NodeId Net::Mutate(std::string name, NodeId target, std::vector<NodeId> others) {
  NodeSpec spec;
  spec.kind = NodeKind::kCall;
  spec.op = "aten.add_.Tensor";
  const std::vector<NodeId> alias = {target};
  spec.alias_of = alias;
  spec.mutates = alias;
  others.insert(others.begin(), target);
  const Shape same = shape(target);
  return Add(spec, name, others, &same);
}

NodeId Net::Start(CollectiveKind kind, std::string name, NodeId input, ReduceOp op) {
  return Tagged(Tag::kNone, "", kind, std::move(name), input, op);
}

NodeId Net::ReduceInPlace(std::string name, NodeId target) {
  NodeSpec spec;
  spec.kind = NodeKind::kCollective;
  spec.op = "_c10d_functional.all_reduce_";
  spec.collective = {CollectiveKind::kAllReduce, group_, ReduceOp::kSum, Tag::kNone, ""};
  const std::vector<NodeId> alias = {target};
  spec.alias_of = alias;
  spec.mutates = alias;
  const Shape same = shape(target);
  return Add(spec, name, {target}, &same);
}

NodeId Net::Tagged(Tag tag, std::string fqn, CollectiveKind kind, std::string name, NodeId input,
                   ReduceOp op) {
  NodeSpec spec;
  spec.kind = NodeKind::kCollective;
  spec.op = "_c10d_functional.collective";
  spec.collective = {kind, group_, op, tag, fqn};
  Shape out = shape(input);
  const int64_t size = sizes_[static_cast<size_t>(group_)];
  if (kind == CollectiveKind::kAllGather) out[0] *= size;
  if (kind == CollectiveKind::kReduceScatter) out[0] /= size;
  return Add(spec, name, {input}, &out);
}

NodeId Net::Wait(std::string name, NodeId start) {
  NodeSpec spec;
  spec.kind = NodeKind::kWait;
  spec.op = "_c10d_functional.wait_tensor.default";
  const std::vector<NodeId> alias = {start};
  spec.alias_of = alias;
  const Shape same = shape(start);
  return Add(spec, name, {start}, &same);
}

NodeId Net::Gather(std::string name, NodeId input) {
  return Wait("W" + name, Start(CollectiveKind::kAllGather, "AG" + name, input));
}
NodeId Net::Scatter(std::string name, NodeId input, ReduceOp op) {
  return Wait("WR" + name, Start(CollectiveKind::kReduceScatter, "RS" + name, input, op));
}
NodeId Net::Reduce(std::string name, NodeId input) {
  return Wait("WA" + name, Start(CollectiveKind::kAllReduce, "AR" + name, input, ReduceOp::kSum));
}

void Net::Out(NodeId node, SlotKind kind, std::string fqn) {
  slots_.push_back({node, kind, std::move(fqn)});
}

Graph Net::Build() {
  std::vector<NodeSpec::Slot> slots;
  std::vector<NodeId> inputs;
  std::set<NodeId> known;
  for (const Slot& slot : slots_) {
    slots.push_back({slot.node, slot.kind, slot.fqn});
    if (slot.node != kNoNode && known.insert(slot.node).second) inputs.push_back(slot.node);
  }
  NodeSpec spec;
  spec.kind = NodeKind::kOutput;
  spec.op = "output";
  spec.slots = slots;
  module_.clear();
  direction_ = Direction::kNone;
  Add(spec, "output", inputs, nullptr);
  return Must(std::move(builder_).Build());
}

namespace {

// Parameters of a layered net, by layer.
using Layers = std::vector<std::vector<NodeId>>;

std::string Fqn(int layer, int parameter) {
  return absl::StrCat("layers.", layer, ".lin", parameter, ".weight");
}
std::string Module(int layer, int parameter) {
  return absl::StrCat("layers.", layer, ".lin", parameter);
}

Layers AddParameters(Net& net, int layers, int parameters) {
  Layers all(static_cast<size_t>(layers));
  for (int i = 0; i < layers; ++i) {
    for (int j = 0; j < parameters; ++j) {
      all[static_cast<size_t>(i)].push_back(net.Parameter(Fqn(i, j), {8, 64}));
    }
  }
  return all;
}

NodeId AddForward(Net& net, const Layers& layers, NodeId h, Layers* gathered, Layers* inputs) {
  for (size_t i = 0; i < layers.size(); ++i) {
    for (size_t j = 0; j < layers[i].size(); ++j) {
      const std::string name = absl::StrCat(i, j);
      net.In(Module(static_cast<int>(i), static_cast<int>(j)));
      const NodeId w = net.Gather(name, layers[i][j]);
      if (gathered != nullptr) (*gathered)[i].push_back(w);
      if (inputs != nullptr) (*inputs)[i].push_back(h);
      h = net.Call("mm" + name, {h, w}, {64, 64});
    }
  }
  return h;
}

// `gathered` null: the backward gathers.
NodeId AddBackward(Net& net, const Layers& layers, const Layers* gathered, const Layers& acts,
                   NodeId h) {
  for (size_t i = layers.size(); i-- > 0;) {
    for (size_t j = layers[i].size(); j-- > 0;) {
      const std::string name = absl::StrCat(i, j);
      net.In(Module(static_cast<int>(i), static_cast<int>(j)));
      const NodeId w =
          gathered != nullptr ? (*gathered)[i][j] : net.Gather(name + "'", layers[i][j]);
      const NodeId gw = net.Call("gw" + name, {acts[i][j], h}, {64, 64});
      h = net.Call("gx" + name, {h, w}, {64, 64});
      net.Out(net.Scatter(name, gw), SlotKind::kParameterGradient,
              Fqn(static_cast<int>(i), static_cast<int>(j)));
    }
  }
  return h;
}

}  // namespace

Graph Forward(int layers, int parameters) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const Layers all = AddParameters(net, layers, parameters);
  net.Out(AddForward(net, all, x, nullptr, nullptr), SlotKind::kOutput);
  return net.Build();
}

Graph Backward(int layers, int parameters) {
  Net net;
  const NodeId t = net.Input("t", {64, 64}, Role::kTangent);
  const Layers all = AddParameters(net, layers, parameters);
  Layers acts(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all[i].size(); ++j) {
      acts[i].push_back(net.Input(absl::StrCat("act", i, j), {64, 64}, Role::kSaved));
    }
  }
  net.Out(AddBackward(net, all, nullptr, acts, t), SlotKind::kInputGradient);
  return net.Build();
}

Graph Joint(int layers, int parameters, bool reshard) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const Layers all = AddParameters(net, layers, parameters);
  const NodeId t = net.Input("t", {64, 64}, Role::kTangent);
  Layers gathered(all.size()), acts(all.size());
  net.Going(Direction::kForward);
  net.Out(AddForward(net, all, x, &gathered, &acts), SlotKind::kOutput);
  net.Going(Direction::kBackward);
  net.Out(AddBackward(net, all, reshard ? nullptr : &gathered, acts, t), SlotKind::kInputGradient);
  return net.Build();
}

Graph Gathers(const std::vector<std::string>& fqns) {
  Net net;
  std::vector<NodeId> parameters, gathered;
  for (const std::string& fqn : fqns) parameters.push_back(net.Parameter(fqn, {8, 64}));
  for (size_t i = 0; i < fqns.size(); ++i) {
    net.In(fqns[i].substr(0, fqns[i].rfind('.')));
    gathered.push_back(net.Gather("_" + fqns[i], parameters[i]));
  }
  net.Out(net.Call("mm", gathered, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

Costs CostsOf(const Graph& graph) {
  Mesh mesh;
  for (const Group& group : graph.groups()) {
    const auto same = [&](const MeshDim& dim) { return dim.name == group.mesh_dim; };
    if (std::none_of(mesh.dims.begin(), mesh.dims.end(), same)) {
      mesh.dims.push_back({group.mesh_dim, group.size, 0, ""});
    }
  }
  CostProfile profile;
  profile.name = "test";
  return Must(Costs::FromDeviceModel(graph, mesh, profile));
}

PlanOptions TransformerBlock() {
  PlanOptions options;
  options.mode = "transformer_block";
  return options;
}

PlanOptions Manual(std::string buckets) {
  PlanOptions options;
  options.mode = "manual";
  options.backend = "gloo";
  options.buckets = std::move(buckets);
  options.memory_limit_bytes = int64_t{1} << 40;
  return options;
}

absl::StatusOr<Plan> TryPlan(const Graph& graph, const PlanOptions& options) {
  return MakePlan(graph, CostsOf(graph), options);
}

Plan Planned(const Graph& graph, const PlanOptions& options) {
  const absl::StatusOr<Plan> plan = TryPlan(graph, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan();
}

std::string Words(const Graph& graph, const Plan& plan, const BucketWord& word_of) {
  std::vector<std::string> words;
  for (const Step& step : plan.order) {
    if (step.kind != Step::Kind::kNode) {
      words.push_back(word_of(step, plan.buckets[static_cast<size_t>(step.id)]));
      continue;
    }
    const NodeKind kind = graph.kind(step.id);
    if (kind == NodeKind::kPlaceholder || kind == NodeKind::kOutput) continue;
    words.emplace_back(graph.node_name(step.id));
  }
  return absl::StrJoin(words, " ");
}

std::string Text(const Graph& graph, const Plan& plan) {
  return Words(graph, plan, [&](const Step& step, const Bucket& bucket) {
    const CollectiveKind kind = graph.collective(graph.collective_of(bucket.members[0])).kind;
    const bool gather = kind == CollectiveKind::kAllGather;
    const bool reduce = kind == CollectiveKind::kAllReduce;
    std::string word = step.kind == Step::Kind::kStart ? (gather   ? "AG"
                                                          : reduce ? "AR"
                                                                   : "RS")
                                                       : (gather   ? "W"
                                                          : reduce ? "WA"
                                                                   : "WR");
    const absl::string_view name = bucket.name;
    for (const char c : name) {
      if (c >= '0' && c <= '9') word += c;
    }
    if (gather && name.find("backward") != absl::string_view::npos) word += "'";
    return word;
  });
}

std::vector<std::string> BucketNames(const Plan& plan) {
  std::vector<std::string> names;
  for (const Bucket& bucket : plan.buckets) names.push_back(bucket.name);
  return names;
}

std::vector<std::string> Members(const Graph& graph, const Bucket& bucket) {
  std::vector<std::string> names;
  for (const NodeId member : bucket.members) names.emplace_back(graph.node_name(member));
  return names;
}

bool HasDiagnostic(const Plan& plan, absl::string_view code) {
  return std::any_of(plan.diagnostics.begin(), plan.diagnostics.end(),
                     [&](const Diagnostic& d) { return d.code == code; });
}

std::string DiagnosticText(const Plan& plan, absl::string_view code) {
  for (const Diagnostic& diagnostic : plan.diagnostics) {
    if (diagnostic.code == code) return diagnostic.text;
  }
  return "";
}

CapturedGraph Captured(const std::string& name) { return ReadTestGraph(name); }

std::vector<std::string> CapturedNames() {
  std::vector<std::string> names;
  for (const std::string& file : TestDataFiles("graphs", ".json.gz")) {
    const std::string name = std::filesystem::path(file).filename().string();
    names.push_back(name.substr(0, name.find(".json.gz")));
  }
  return names;
}

}  // namespace bucketd::testing
