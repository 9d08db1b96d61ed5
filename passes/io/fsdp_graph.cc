#include "passes/io/fsdp_graph.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

using Kind = FsdpStep::Event::Kind;

constexpr char kMeshDim[] = "fsdp";

std::vector<std::string> ModulesOf(const FsdpStep::Unit& unit) {
  return absl::StrSplit(unit.name, ", ");
}

struct Parameter {
  std::string name;
  int64_t shard = 0;
};

// Which module of the unit a parameter belongs to is not in a trace, and does not matter: they
// travel together. But each module has one.
std::vector<Parameter> ParametersOf(const FsdpStep::Unit& unit) {
  const std::vector<std::string> modules = ModulesOf(unit);
  std::vector<int64_t> shards = unit.shards;
  if (!shards.empty() && shards.size() < modules.size()) {
    int64_t all = 0;
    for (const int64_t shard : shards) all += shard;
    const auto count = static_cast<int64_t>(modules.size());
    shards.assign(modules.size(), std::max(int64_t{1}, all / count));
    shards.back() = std::max(int64_t{1}, all - (count - 1) * shards.front());
  }
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string& module = modules[std::min(i, modules.size() - 1)];
    parameters.push_back({absl::StrCat(module, module.empty() ? "p" : ".p", i), shards[i]});
  }
  return parameters;
}

class Writer {
 public:
  Writer(const FsdpStep& step, const FsdpGraphOptions& options)
      : step_(step), options_(options), builder_(options.name), units_(step.units.size()) {}

  absl::StatusOr<CapturedGraph> Run() {
    RETURN_IF_ERROR(builder_.AddGroup({kMeshDim, 0, step_.ranks}).status());
    RETURN_IF_ERROR(AddPlaceholders());
    PlaceGradients();
    for (size_t i = 0; i < step_.events.size(); ++i) RETURN_IF_ERROR(AddEvent(i));
    RETURN_IF_ERROR(AddOutput());
    ASSIGN_OR_RETURN(Graph graph, std::move(builder_).Build());
    StatedCosts costs;
    costs.node_us = std::move(node_us_);
    Mesh mesh;
    mesh.dims.push_back({kMeshDim, step_.ranks, options_.ranks_per_node, ""});
    mesh.device_type = step_.on_gpu ? "cuda" : "cpu";
    return CapturedGraph{std::move(graph), std::move(costs), true, std::move(mesh), "joint", {}};
  }

 private:
  struct UnitState {
    std::vector<Parameter> parameters;
    std::vector<NodeId> shards;  // placeholders
    std::vector<NodeId> waits;   // of the last gather
    std::vector<NodeId> gradients;
    bool gathered_again = false;
  };

  NodeSpec Spec(NodeKind kind, absl::string_view op, absl::Span<const NodeId> inputs,
                absl::Span<const NodeSpec::Tensor> outputs) const {
    NodeSpec spec;
    spec.kind = kind;
    spec.op = op;
    spec.inputs = inputs;
    spec.outputs = outputs;
    spec.direction = direction_;
    return spec;
  }

  absl::StatusOr<NodeId> Add(const NodeSpec& spec, double us = 0.0) {
    absl::StatusOr<NodeId> id = builder_.Add(spec);
    if (!id.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(step_.source, ": ", id.status().message()));
    }
    node_us_.push_back(us);
    return *id;
  }

  absl::Status AddPlaceholders() {
    const int64_t one[] = {1};
    const NodeSpec::Tensor token[] = {{DType::kF32, one}};
    NodeSpec batch = Spec(NodeKind::kPlaceholder, "placeholder", {}, token);
    batch.name = "batch";
    batch.role = Role::kInput;
    ASSIGN_OR_RETURN(last_, Add(batch));
    for (size_t u = 0; u < units_.size(); ++u) {
      const FsdpStep::Unit& unit = step_.units[u];
      units_[u].parameters = ParametersOf(unit);
      for (const Parameter& parameter : units_[u].parameters) {
        const int64_t shape[] = {parameter.shard};
        const NodeSpec::Tensor shard[] = {{unit.gathered, shape}};
        NodeSpec spec = Spec(NodeKind::kPlaceholder, "placeholder", {}, shard);
        spec.name = spec.parameter = parameter.name;
        spec.role = Role::kParameter;
        ASSIGN_OR_RETURN(const NodeId id, Add(spec));
        units_[u].shards.push_back(id);
      }
    }
    return absl::OkStatus();
  }

  // Gradients come out of the last kernel before their unit's reduce-scatter, the first of a step.
  void PlaceGradients() {
    made_by_.resize(step_.events.size());
    std::set<int32_t> placed;
    size_t kernel = step_.events.size();
    for (size_t i = 0; i < step_.events.size(); ++i) {
      const FsdpStep::Event& event = step_.events[i];
      if (event.kind == Kind::kCompute) kernel = i;
      if (event.kind != Kind::kReduce || kernel == step_.events.size()) continue;
      if (placed.insert(event.unit).second) made_by_[kernel].push_back(event.unit);
    }
  }

  absl::Status AddEvent(size_t i) {
    const FsdpStep::Event& event = step_.events[i];
    direction_ = event.backward ? Direction::kBackward : Direction::kForward;
    switch (event.kind) {
      case Kind::kUse:
        open_.insert(event.unit);
        return Use(event);
      case Kind::kRelease:
        open_.erase(event.unit);
        return absl::OkStatus();
      case Kind::kReduce:
        open_.erase(event.unit);
        return Reduce(event);
      case Kind::kCompute:
        return Compute(event, made_by_[i]);
    }
    return absl::OkStatus();
  }

  absl::Status Use(const FsdpStep::Event& event) {
    const FsdpStep::Unit& unit = step_.units[static_cast<size_t>(event.unit)];
    UnitState& state = units_[static_cast<size_t>(event.unit)];
    if (unit.gathers == 0) return absl::OkStatus();
    const bool again = event.backward && unit.gathers > 1 && !options_.keeps;
    if (!state.waits.empty() && (!again || state.gathered_again)) return absl::OkStatus();
    state.gathered_again = event.backward;
    ASSIGN_OR_RETURN(state.waits, AddAll(CollectiveKind::kAllGather, Tag::kFsdpAllGather,
                                         state.shards, state.parameters, unit.gathered));
    return absl::OkStatus();
  }

  absl::Status Reduce(const FsdpStep::Event& event) {
    const FsdpStep::Unit& unit = step_.units[static_cast<size_t>(event.unit)];
    UnitState& state = units_[static_cast<size_t>(event.unit)];
    ASSIGN_OR_RETURN(const std::vector<NodeId> waits,
                     AddAll(CollectiveKind::kReduceScatter, Tag::kFsdpReduceScatter,
                            state.gradients, state.parameters, unit.reduced));
    for (size_t p = 0; p < waits.size(); ++p) {
      slots_.push_back({waits[p], SlotKind::kParameterGradient, state.parameters[p].name});
    }
    state.gradients.clear();
    return absl::OkStatus();
  }

  absl::Status Compute(const FsdpStep::Event& event, const std::vector<int32_t>& makes) {
    std::vector<NodeId> inputs = {last_};
    for (const int32_t u : open_) {
      const std::vector<NodeId>& waits = units_[static_cast<size_t>(u)].waits;
      inputs.insert(inputs.end(), waits.begin(), waits.end());
    }
    std::vector<std::vector<int64_t>> shapes = {{1}};
    std::vector<NodeSpec::Tensor> outputs = {{DType::kF32, {}}};
    std::vector<std::pair<int32_t, size_t>> gradients;
    for (const int32_t u : makes) {
      const UnitState& state = units_[static_cast<size_t>(u)];
      for (size_t p = 0; p < state.parameters.size(); ++p) {
        shapes.push_back({state.parameters[p].shard * step_.ranks});
        outputs.push_back({step_.units[static_cast<size_t>(u)].reduced, {}});
        gradients.emplace_back(u, p);
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].shape = shapes[i];
    const std::string name = absl::StrCat(event.backward ? "backward_" : "forward_", kernels_++);
    NodeSpec spec = Spec(NodeKind::kCall, "traced.kernels", inputs, outputs);
    spec.name = name;
    spec.flags = kComputeFlag;
    ASSIGN_OR_RETURN(const NodeId kernel, Add(spec, static_cast<double>(event.picoseconds) * 1e-6));
    ASSIGN_OR_RETURN(last_, AddGetitem(kernel, 0, outputs[0]));
    if (!event.backward) forward_ = last_;
    for (size_t i = 0; i < gradients.size(); ++i) {
      ASSIGN_OR_RETURN(const NodeId item,
                       AddGetitem(kernel, static_cast<int32_t>(i + 1), outputs[i + 1]));
      units_[static_cast<size_t>(gradients[i].first)].gradients.push_back(item);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<NodeId> AddGetitem(NodeId of, int32_t index, const NodeSpec::Tensor& tensor) {
    const NodeId inputs[] = {of};
    const NodeSpec::Tensor outputs[] = {tensor};
    NodeSpec spec = Spec(NodeKind::kGetitem, "getitem", inputs, outputs);
    spec.alias_of = inputs;
    spec.flags = kViewFlag;
    spec.getitem_index = index;
    return Add(spec);
  }

  // Starts all of them, then waits for each. The waits.
  absl::StatusOr<std::vector<NodeId>> AddAll(CollectiveKind kind, Tag tag,
                                             const std::vector<NodeId>& inputs,
                                             const std::vector<Parameter>& parameters,
                                             DType dtype) {
    std::vector<NodeId> ids;
    for (const bool wait : {false, true}) {
      for (size_t p = 0; p < inputs.size(); ++p) {
        const int64_t shape[] = {parameters[p].shard * (Gathers(kind) ? step_.ranks : 1)};
        const NodeSpec::Tensor outputs[] = {{dtype, shape}};
        const NodeId input[] = {wait ? ids[p] : inputs[p]};
        NodeSpec spec =
            wait ? Spec(NodeKind::kWait, "_c10d_functional.wait_tensor.default", input, outputs)
                 : Spec(NodeKind::kCollective, TraitsOf(kind).op, input, outputs);
        if (wait) {
          spec.alias_of = input;
          ASSIGN_OR_RETURN(ids[p], Add(spec));
          continue;
        }
        spec.collective.kind = kind;
        spec.collective.reduce_op = Reduces(kind) ? ReduceOp::kSum : ReduceOp::kNone;
        spec.collective.tag = tag;
        spec.collective.parameter = parameters[p].name;
        ASSIGN_OR_RETURN(ids.emplace_back(), Add(spec));
      }
    }
    return ids;
  }

  absl::Status AddOutput() {
    std::vector<NodeSpec::Slot> slots = {{forward_, SlotKind::kOutput, ""}};
    if (forward_ == kNoNode) slots.front() = {};
    slots.insert(slots.end(), slots_.begin(), slots_.end());
    std::vector<NodeId> inputs;
    for (const NodeSpec::Slot& slot : slots) {
      if (slot.node != kNoNode) inputs.push_back(slot.node);
    }
    NodeSpec spec = Spec(NodeKind::kOutput, "output", inputs, {});
    spec.slots = slots;
    return Add(spec).status();
  }

  const FsdpStep& step_;
  const FsdpGraphOptions& options_;
  GraphBuilder builder_;
  std::vector<UnitState> units_;
  std::vector<std::vector<int32_t>> made_by_;  // of each event: units whose gradients it makes
  std::set<int32_t> open_;                     // units in use
  std::vector<NodeSpec::Slot> slots_;
  std::vector<double> node_us_;
  NodeId last_ = kNoNode, forward_ = kNoNode;
  Direction direction_ = Direction::kNone;
  int32_t kernels_ = 0;
};

}  // namespace

absl::StatusOr<CapturedGraph> GraphOfFsdpStep(const FsdpStep& step,
                                              const FsdpGraphOptions& options) {
  return Writer(step, options).Run();
}

std::string WrappingOf(const FsdpStep& step) {
  std::vector<std::string> entries;
  for (const FsdpStep::Event& event : step.events) {
    if (event.kind != Kind::kUse || event.backward) continue;
    const FsdpStep::Unit& unit = step.units[static_cast<size_t>(event.unit)];
    if (unit.name.empty() || unit.shards.empty() || unit.gathers == 0) continue;
    const std::string entry = absl::StrJoin(ModulesOf(unit), "+");
    if (std::find(entries.begin(), entries.end(), entry) == entries.end()) {
      entries.push_back(entry);
    }
  }
  return absl::StrJoin(entries, ",");
}

}  // namespace bucketd
