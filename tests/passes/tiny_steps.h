// Steps of a handful of kernels and collectives, one kind for each way of sharding, with costs of
// any proportion: small enough to be solved exactly.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "passes/cost/costs.h"
#include "passes/cost/profile.h"
#include "tests/passes/auto_test_util.h"

namespace bucketd::testing {

inline constexpr std::array<const char*, 9> kTinyKinds = {
    "FSDP forward", "FSDP backward", "DDP backward",    "tensor parallel",  "two chains",
    "random",       "experts",       "hybrid sharding", "memory that binds"};

class TinyStep {
 public:
  TinyStep(size_t kind, uint32_t seed) : random_(seed * 6 + static_cast<uint32_t>(kind)), net_(4) {
    other_ = net_.AddGroup("other", 2);
    value_ = net_.Input("x", {64, 64});
    switch (kind) {
      case 0:
        for (int i = 0; i < 3 + random_.Below(2); ++i) Layer();
        break;
      case 1:
        for (int i = 0; i < 2; ++i) {
          Layer();
          Reduced(net_.Scatter(Name("s"), Kernel({value_})));
        }
        break;
      case 2:
        for (int i = 0; i < 3; ++i) {
          value_ = Kernel({value_});
          Reduced(net_.Reduce(Name("r"), random_.OneIn(2) ? Kernel({value_}) : value_));
        }
        break;
      case 3:
        for (int i = 0; i < 2; ++i) {
          Layer();
          Blocking();
        }
        value_ = Kernel({value_});
        break;
      case 4:
        TwoChains();
        break;
      case 6:
        Experts();
        break;
      case 7:
        for (int i = 0; i < 2; ++i) {
          value_ = Kernel({value_});
          const NodeId shard = net_.Scatter(Name("s"), Kernel({value_}));
          net_.OnGroup(other_);
          Reduced(net_.Reduce(Name("r"), shard));
          net_.OnGroup(0);
        }
        break;
      case 8:
        MoreThanFits();
        break;
      default:
        AnyStep();
    }
  }

  // Of program order's peak: so much that it never binds, but for one kind.
  int32_t memory_limit_ppm() const { return memory_limit_ppm_; }

  Graph Build() {
    net_.Out(value_, SlotKind::kOutput);
    for (const NodeId n : reduced_) net_.Out(n, SlotKind::kParameterGradient);
    return net_.Build();
  }

  // Latencies, bandwidths, copies, launches and the price of overlap from nothing to dear.
  Costs CostsOf(const Graph& graph) {
    CostProfile profile;
    profile.name = "tiny";
    profile.gamma_us = random_.OneOf(std::vector<double>{0, 2, 20});
    profile.copy_launch_us = random_.OneOf(std::vector<double>{0, 4, 25});
    profile.hbm_bytes_per_s = random_.OneOf(std::vector<double>{1e9, 1e11, 2.68e12});
    profile.overlap_slowdown = random_.OneOf(std::vector<double>{0, 0.08, 0.37});
    profile.host_us_per_kernel = random_.OneOf(std::vector<double>{0, 0, 6});
    profile.host_us_per_collective = random_.OneOf(std::vector<double>{0, 0, 21});
    StatedCosts stated;
    for (NodeId n = 0; n < graph.size(); ++n) {
      stated.node_us.push_back(IsKernel(graph, n) ? 0.001 * (1 + random_.Below(40'000)) : 0.0);
    }
    std::vector<StatedCosts::Link> links;
    for (int g = 0; g < 2; ++g) {
      links.push_back({random_.OneOf(std::vector<double>{0, 3, 17.3}),
                       random_.OneOf(std::vector<double>{3e8, 1e9, 1e11}), false});
    }
    const bool same = !random_.OneIn(4);
    for (const Collective& c : graph.collectives()) {
      stated.links.push_back(links[static_cast<size_t>(same ? c.group : random_.Below(2))]);
    }
    absl::StatusOr<Costs> costs = Costs::FromFile(graph, stated, profile);
    EXPECT_TRUE(costs.ok()) << costs.status();
    return *std::move(costs);
  }

 private:
  static bool IsKernel(const Graph& graph, NodeId n) {
    return graph.kind(n) == NodeKind::kCall && !graph.is_view(n);
  }
  std::string Name(const char* what) { return absl::StrCat(what, next_name_++); }
  NodeId Kernel(std::vector<NodeId> inputs) {
    return net_.Call(Name("k"), std::move(inputs), {64, 64});
  }
  NodeId Gathered() {
    const int64_t rows = 4 * (1 + random_.Below(6));
    return net_.Gather(Name("g"), net_.Parameter(Name("p"), {rows, 64}));
  }
  void Layer() { value_ = Kernel({value_, Gathered()}); }
  void Blocking() {
    net_.OnGroup(random_.OneIn(3) ? 0 : other_);
    value_ = net_.Reduce(Name("b"), value_);
    net_.OnGroup(0);
  }
  void Reduced(NodeId n) { reduced_.push_back(n); }

  void TwoChains() {
    const NodeId x = value_;
    Layer();
    Blocking();
    const NodeId left = value_;
    value_ = Kernel({x});
    Blocking();
    value_ = Kernel({value_});
    value_ = Kernel({left, value_});
  }

  // To the experts and back, beside a shared one; their weights are gathered.
  void Experts() {
    const NodeId x = Kernel({value_});
    const NodeId shared = Kernel({x});
    net_.OnGroup(other_);
    const NodeId sent = Exchanged(x);
    net_.OnGroup(0);
    const NodeId made = Kernel({sent, Gathered()});
    net_.OnGroup(other_);
    const NodeId back = Exchanged(made);
    net_.OnGroup(0);
    value_ = Kernel({back, shared});
    if (random_.OneIn(2)) Layer();
  }
  NodeId Exchanged(NodeId value) {
    return net_.Wait(Name("w"), net_.Start(CollectiveKind::kAllToAll, Name("e"), value));
  }

  // Gathers that may not all be early, gradients that may not all be late.
  void MoreThanFits() {
    memory_limit_ppm_ = random_.OneOf(std::vector<int>{900'000, 1'000'000, 1'050'000});
    const NodeId x = Kernel({value_});
    value_ = x;
    Layer();
    Reduced(net_.Scatter(Name("s"), Kernel({value_, x})));
    Layer();
    if (random_.OneIn(2)) Reduced(net_.Scatter(Name("s"), Kernel({value_})));
  }

  void AnyStep() {
    std::vector<NodeId> values = {value_};
    int collectives = 0;
    for (int i = 0; i < 6; ++i) {
      const NodeId from = random_.OneOf(values);
      const int what = collectives == 3 ? 3 : random_.Below(5);
      if (what < 3) ++collectives;
      net_.OnGroup(random_.OneIn(3) ? other_ : 0);
      if (what == 0) {
        values.push_back(Kernel({from, Gathered()}));
      } else if (what == 1) {
        values.push_back(net_.Reduce(Name("r"), from));
      } else if (what == 2) {
        Reduced(net_.Scatter(Name("s"), from));
      } else {
        const NodeId to = random_.OneOf(values);
        values.push_back(Kernel(from == to ? std::vector<NodeId>{from} : std::vector{from, to}));
      }
    }
    value_ = values.back();
  }

  Random random_;
  Net net_;
  GroupId other_ = 0;
  NodeId value_ = 0;
  int next_name_ = 0;
  int32_t memory_limit_ppm_ = 10'000'000;
  std::vector<NodeId> reduced_;
};

}  // namespace bucketd::testing
