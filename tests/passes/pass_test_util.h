// Small graphs, made by hand, and plans as one line of text.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/costs.h"
#include "passes/io/fx_json.h"
#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"
#include "passes/pass/options.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd::testing {

using Shape = std::vector<int64_t>;

// Appends nodes; anything that the builder refuses fails the test at once.
class Net {
 public:
  explicit Net(int32_t group_size = 8);

  // What the following nodes say of themselves.
  Net& In(std::string module);
  Net& Going(Direction direction);
  Net& OnGroup(GroupId group);
  Net& Typed(DType dtype);
  GroupId AddGroup(std::string mesh_dim, int32_t size, int32_t lane = 0);

  NodeId Input(std::string name, Shape shape, Role role = Role::kInput, std::string fqn = "");
  NodeId Parameter(std::string fqn, Shape shape);
  NodeId Call(std::string name, std::vector<NodeId> inputs, Shape shape, uint8_t flags = 0,
              std::string op = "aten.relu.default");
  NodeId View(std::string name, NodeId input);  // shares storage
  NodeId Mutate(std::string name, NodeId target, std::vector<NodeId> others = {});
  // A start and its wait; the wait's id. Names get "AG", "RS" or "AR" and "W", "WR" or "WA" before.
  NodeId Gather(std::string name, NodeId input);
  NodeId Scatter(std::string name, NodeId input, ReduceOp op = ReduceOp::kAvg);
  NodeId Reduce(std::string name, NodeId input);
  NodeId Start(CollectiveKind kind, std::string name, NodeId input, ReduceOp op = ReduceOp::kNone);
  NodeId ReduceInPlace(std::string name, NodeId target);  // the start; writes its input
  NodeId Wait(std::string name, NodeId start);
  NodeId Tagged(Tag tag, std::string fqn, CollectiveKind kind, std::string name, NodeId input,
                ReduceOp op);

  void Out(NodeId node, SlotKind kind, std::string fqn = "");
  Graph Build();

  const Shape& shape(NodeId n) const { return shapes_[static_cast<size_t>(n)]; }

 private:
  NodeId Add(NodeSpec spec, const std::string& name, const std::vector<NodeId>& inputs,
             const Shape* shape);

  GraphBuilder builder_;
  std::vector<int32_t> sizes_;
  std::vector<Shape> shapes_;
  std::vector<DType> dtypes_;
  std::string module_;
  Direction direction_ = Direction::kNone;
  GroupId group_ = 0;
  DType dtype_ = DType::kBF16;
  struct Slot {
    NodeId node;
    SlotKind kind;
    std::string fqn;
  };
  std::vector<Slot> slots_;
};

// F(layers, parameters): one layer after the other, each a chain of gathers and matrix products,
// module layers.i.lin<j>. AGij, Wij, mmij.
Graph Forward(int layers, int parameters);
// The backward of it, layers downwards: AGij Wij gwij gxij RSij WRij.
Graph Backward(int layers, int parameters);
// Both in one graph; with `reshard`, the backward gathers anew.
Graph Joint(int layers, int parameters, bool reshard);

// A pass that does what its body does.
class FakePass : public Pass {
 public:
  using Body = absl::StatusOr<bool> (*)(Plan&);
  explicit FakePass(Body body) : body_(body) {}
  absl::string_view name() const override { return "fake"; }
  absl::StatusOr<bool> Run(PassContext&, Plan& plan) const override { return body_(plan); }

 private:
  Body body_;
};

// One gather a parameter, all used at the end.
Graph Gathers(const std::vector<std::string>& fqns);

// Costs of the default profile, device model.
Costs CostsOf(const Graph& graph);

PlanOptions TransformerBlock();
// Options that leave memory free.
PlanOptions Manual(std::string buckets);
// By those costs; Planned expects a plan.
absl::StatusOr<Plan> TryPlan(const Graph& graph, const PlanOptions& options);
Plan Planned(const Graph& graph, const PlanOptions& options);

// The steps of a plan as words, in order: nodes by name, without placeholders and output; starts
// and waits of buckets as `word_of` says.
using BucketWord = std::function<std::string(const Step& step, const Bucket& bucket)>;
std::string Words(const Graph& graph, const Plan& plan, const BucketWord& word_of);
// Calls, collectives, waits and buckets, in order: "AG0 W0 mm00 ...". A bucket is named by the
// digits of its unit; backward gathers get a ' .
std::string Text(const Graph& graph, const Plan& plan);
std::vector<std::string> BucketNames(const Plan& plan);
// Names of a bucket's members.
std::vector<std::string> Members(const Graph& graph, const Bucket& bucket);
bool HasDiagnostic(const Plan& plan, absl::string_view code);
std::string DiagnosticText(const Plan& plan, absl::string_view code);

// tests/data/graphs/<name>.json.gz; fails the test if it cannot be read.
CapturedGraph Captured(const std::string& name);
std::vector<std::string> CapturedNames();

}  // namespace bucketd::testing
