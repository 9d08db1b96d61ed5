#include "tests/passes/generated_steps.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/passes/auto_test_util.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

enum class Model : uint8_t { kTransformer, kExperts, kVision, kConvolution };
enum class Passes : uint8_t { kForward, kBackward, kBoth };
enum class Sharding : uint8_t { kFull, kHybrid, kTensor, kNone };

struct Kind {
  absl::string_view name;
  Model model;
  Passes passes;
  Sharding sharding;
};

constexpr Kind kKinds[] = {
    {"transformer, forward", Model::kTransformer, Passes::kForward, Sharding::kFull},
    {"transformer, backward", Model::kTransformer, Passes::kBackward, Sharding::kFull},
    {"transformer, both, hybrid", Model::kTransformer, Passes::kBoth, Sharding::kHybrid},
    {"transformer, forward, tensor parallel", Model::kTransformer, Passes::kForward,
     Sharding::kTensor},
    {"transformer, backward, tensor parallel", Model::kTransformer, Passes::kBackward,
     Sharding::kTensor},
    {"experts, forward", Model::kExperts, Passes::kForward, Sharding::kFull},
    {"experts, backward", Model::kExperts, Passes::kBackward, Sharding::kFull},
    {"vision transformer, backward", Model::kVision, Passes::kBackward, Sharding::kFull},
    {"convolutions, backward", Model::kConvolution, Passes::kBackward, Sharding::kFull},
    {"convolutions, both, replicated", Model::kConvolution, Passes::kBoth, Sharding::kNone},
};

// One stage of a model, forwards. Values are rows x width each.
struct Stage {
  enum class What : uint8_t {
    kPoint,     // an elementwise kernel of each value, with a weight if it is scaled
    kLinear,    // a matrix product of each value, or several of the one that there is
    kJoin,      // one kernel of all values
    kSplit,     // `count` kernels of the one value
    kExchange,  // all to all with the other experts
    kReduce,    // the sum of all ranks' parts; backwards nothing
    kCopies,    // nothing; backwards that sum
    kKeep,      // the value stays for kAdd
    kAdd,
  };
  What what = What::kPoint;
  std::string module;
  int count = 1;
  int64_t rows = 0, in = 0, out = 0;
  double flops = 0;  // beside those of matrix products
  bool scaled = false;
  int64_t window = 1;  // values that one result of a product is of
};

class Maker {
 public:
  Maker(const Kind& kind, uint32_t seed, bool large)
      : kind_(kind), random_(seed * 16 + static_cast<uint32_t>(&kind - kKinds)), net_(kRanks) {
    if (kind.sharding == Sharding::kHybrid) second_ = net_.AddGroup("replicate", 4);
    if (kind.sharding == Sharding::kTensor) second_ = net_.AddGroup("tp", 2);
    if (kind.model == Model::kExperts) second_ = net_.AddGroup("ep", 8);
    const int nodes = large ? 9'000 : 500 + random_.Below(1'400);
    width_ = 128 * (4 << random_.Below(4));
    rows_ = 1024 << random_.Below(4);
    for (int block = 0; nodes_ < nodes; ++block) AddBlock(block);
  }

  CapturedGraph Make() {
    values_ = {net_.Input("x", {stages_[0].rows, stages_[0].in})};
    AddParameters();
    if (kind_.passes != Passes::kBackward) Forward();
    if (kind_.passes != Passes::kForward) Backward();
    CapturedGraph made{net_.Build(), {}, true, {}, "", {}};
    made.costs.node_us.assign(static_cast<size_t>(made.graph.size()), 0.0);
    for (const auto& [node, us] : kernel_us_) {
      made.costs.node_us[static_cast<size_t>(node)] = us;
    }
    std::vector<StatedCosts::Link> links;
    for (size_t g = 0; g < made.graph.groups().size(); ++g) {
      const bool near = random_.OneIn(2);
      links.push_back({near ? 12.0 + random_.Below(10) : 25.0 + random_.Below(40),
                       1e9 * (near ? 200 + random_.Below(200) : 20 + random_.Below(60)), false});
    }
    for (const Collective& c : made.graph.collectives()) {
      made.costs.links.push_back(links[static_cast<size_t>(c.group)]);
    }
    return made;
  }

 private:
  static constexpr int32_t kRanks = 8;
  using What = Stage::What;
  struct Weight {
    std::string name;  // of the parameter
    NodeId shard = -1;
    Shape full;
  };

  // --- What the model is made of.

  void Add(What what, std::string module, int64_t in, int64_t out, int count = 1,
           double flops = 0.0, bool scaled = false) {
    stages_.push_back({what, std::move(module), count, rows_, in, out, flops, scaled, 1});
    const int weights = what == What::kLinear ? count : scaled ? 1 : 0;
    const int gathered = kind_.sharding == Sharding::kNone ? 0 : 3;
    const int reduced = kind_.sharding == Sharding::kHybrid ? 4 : 2;
    nodes_ += weights;
    if (kind_.passes != Passes::kBackward) nodes_ += weights * gathered + count;
    if (kind_.passes != Passes::kForward) nodes_ += weights * (gathered + 1 + reduced) + count;
  }

  void AddBlock(int block) {
    const std::string name = absl::StrCat("layers.", block, ".");
    if (kind_.model == Model::kConvolution) {
      AddConvolutions(name, block);
      return;
    }
    AddAttention(name);
    if (kind_.model == Model::kExperts && block > 0) {
      AddExperts(name);
    } else {
      AddFeedForward(name);
    }
  }

  void AddAttention(const std::string& name) {
    const int64_t w = width_, parts = Parts();
    Add(What::kKeep, name + "keep", w, w);
    Add(What::kPoint, name + "attention_norm", w, w, 1, 0.0, true);
    if (parts > 1) Add(What::kCopies, name + "copies", w, w);
    Add(What::kLinear, name + "attention.w", w, w / parts, 3);
    Add(What::kPoint, name + "attention.rope", w / parts, w / parts, 3);
    const double flops = 4.0 * static_cast<double>(rows_ * w / parts) * 2048;
    Add(What::kJoin, name + "attention.sdpa", w / parts, w / parts, 1, flops);
    Add(What::kLinear, name + "attention.wo", w / parts, w);
    if (parts > 1) Add(What::kReduce, name + "sum", w, w);
    Add(What::kAdd, name + "add", w, w);
  }

  void AddFeedForward(const std::string& name) {
    const int64_t w = width_, parts = Parts(), hidden = 4 * w / parts;
    const bool gated = kind_.model != Model::kVision;
    Add(What::kKeep, name + "keep_too", w, w);
    Add(What::kPoint, name + "ffn_norm", w, w, 1, 0.0, true);
    if (parts > 1) Add(What::kCopies, name + "copies_too", w, w);
    Add(What::kLinear, name + "feed_forward.w1", w, hidden, gated ? 2 : 1);
    Add(gated ? What::kJoin : What::kPoint, name + "feed_forward.act", hidden, hidden);
    Add(What::kLinear, name + "feed_forward.w2", hidden, w);
    if (parts > 1) Add(What::kReduce, name + "sum_too", w, w);
    Add(What::kAdd, name + "add_too", w, w);
  }

  // A router's small kernels, then every local expert for itself.
  void AddExperts(const std::string& name) {
    const int64_t w = width_, hidden = w / 2;
    constexpr int kExperts = 4;
    Add(What::kKeep, name + "keep_too", w, w);
    Add(What::kPoint, name + "ffn_norm", w, w, 1, 0.0, true);
    Add(What::kLinear, name + "moe.router", w, w);
    for (int i = 0; i < 6; ++i) Add(What::kPoint, absl::StrCat(name, "moe.sort", i), w, w);
    Add(What::kExchange, name + "moe.dispatch", w, w);
    Add(What::kSplit, name + "moe.split", w, w, kExperts);
    Add(What::kLinear, name + "moe.experts.w1", w, hidden, kExperts);
    Add(What::kPoint, name + "moe.experts.act", hidden, hidden, kExperts);
    Add(What::kLinear, name + "moe.experts.w2", hidden, w, kExperts);
    Add(What::kJoin, name + "moe.join", w, w);
    Add(What::kExchange, name + "moe.combine", w, w);
    Add(What::kPoint, name + "moe.scale", w, w);
    Add(What::kAdd, name + "add_too", w, w);
  }

  // Deeper blocks have fewer pixels and more channels.
  void AddConvolutions(const std::string& name, int block) {
    const int64_t before = width_;
    if (block > 0 && block % 4 == 0 && rows_ > 512) {
      rows_ /= 2;
      width_ = std::min<int64_t>(2048, width_ * 2);
    }
    const int64_t w = width_, narrow = w / 4;
    if (before != w) Add(What::kLinear, name + "downsample", before, w);
    Add(What::kKeep, name + "keep", w, w);
    for (const auto& [part, in, out, window] : {std::tuple{"conv1", w, narrow, 1},
                                                {"conv2", narrow, narrow, 9},
                                                {"conv3", narrow, w, 1}}) {
      Add(What::kLinear, name + part, in, out);
      stages_.back().window = window;
      Add(What::kPoint, absl::StrCat(name, part, ".norm"), out, out, 1, 0.0, true);
    }
    Add(What::kAdd, name + "add", w, w);
  }

  int64_t Parts() const { return kind_.sharding == Sharding::kTensor ? 2 : 1; }

  // --- Nodes.

  std::string Name(absl::string_view what) { return absl::StrCat(what, "_", next_name_++); }

  // By a roofline, and off it by up to a fifth.
  NodeId Kernel(absl::string_view what, std::vector<NodeId> inputs, Shape shape, double flops) {
    double bytes = 2.0 * static_cast<double>(shape[0] * shape[1]);
    for (const NodeId n : inputs) {
      bytes += 2.0 * static_cast<double>(net_.shape(n)[0] * net_.shape(n)[1]);
    }
    const NodeId n = net_.Call(Name(what), std::move(inputs), std::move(shape),
                               flops > 0 ? uint8_t{kComputeFlag} : uint8_t{0});
    const double us = 3.0 + std::max(flops / 500e6, bytes / 2.5e6);
    kernel_us_.emplace_back(n, us * (0.8 + 0.01 * random_.Below(41)));
    return n;
  }
  NodeId Product(absl::string_view what, std::vector<NodeId> inputs, const Shape& shape,
                 int64_t inner) {
    return Kernel(what, std::move(inputs), shape,
                  2.0 * static_cast<double>(shape[0] * shape[1] * inner));
  }

  void AddParameters() {
    weights_.resize(stages_.size());
    saved_.resize(stages_.size());
    for (size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      const bool linear = stage.what == What::kLinear;
      for (int i = 0; i < (linear ? stage.count : stage.scaled ? 1 : 0); ++i) {
        Weight weight;
        weight.name = absl::StrCat(stage.module, stage.count > 1 ? absl::StrCat(i) : "", ".weight");
        weight.full = {stage.out, linear ? stage.in * stage.window : 1};
        Shape own = weight.full;
        if (kind_.sharding != Sharding::kNone) own[0] /= kRanks;
        weight.shard = net_.Parameter(weight.name, own);
        weights_[s].push_back(std::move(weight));
      }
      if (kind_.passes != Passes::kBackward) continue;
      if (!linear && stage.what != What::kPoint) continue;
      const bool one_each = s > 0 && stages_[s - 1].count == stage.count;
      for (int i = 0; i < (one_each ? stage.count : 1); ++i) {
        saved_[s].push_back(net_.Input(Name("saved"), {stage.rows, stage.in}, Role::kSaved));
      }
    }
  }

  NodeId Whole(const Weight& weight) {
    if (kind_.sharding == Sharding::kNone) return weight.shard;
    return net_.OnGroup(0).Gather(Name("g"),
                                  Kernel("cast", {weight.shard}, net_.shape(weight.shard), 0.0));
  }

  NodeId OnSecond(What what, NodeId value) {
    net_.OnGroup(second_);
    const bool exchange = what == What::kExchange;
    const NodeId start =
        net_.Start(exchange ? CollectiveKind::kAllToAll : CollectiveKind::kAllReduce, Name("on"),
                   value, exchange ? ReduceOp::kNone : ReduceOp::kSum);
    const NodeId wait = net_.Wait(Name("w"), start);
    net_.OnGroup(0);
    return wait;
  }

  void Forward() {
    net_.Going(kind_.passes == Passes::kBoth ? Direction::kForward : Direction::kNone);
    std::vector<NodeId> kept;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      const Shape shape = {stage.rows, stage.out};
      net_.In(stage.module);
      saved_[s] = values_;
      std::vector<NodeId> whole;
      for (const Weight& weight : weights_[s]) whole.push_back(Whole(weight));
      switch (stage.what) {
        case What::kPoint:
          for (NodeId& value : values_) {
            std::vector<NodeId> inputs = {value};
            inputs.insert(inputs.end(), whole.begin(), whole.end());
            value = Kernel("point", inputs, shape, 0.0);
          }
          break;
        case What::kLinear:
          values_.resize(whole.size(), values_[0]);
          for (size_t i = 0; i < whole.size(); ++i) {
            values_[i] = Product("mm", {values_[i], whole[i]}, shape, stage.in * stage.window);
          }
          break;
        case What::kJoin:
          values_ = {Kernel("join", values_, shape, stage.flops)};
          break;
        case What::kSplit:
          values_.resize(static_cast<size_t>(stage.count), values_[0]);
          for (NodeId& value : values_) value = Kernel("split", {value}, shape, 0.0);
          break;
        case What::kExchange:
        case What::kReduce:
          values_ = {OnSecond(stage.what, values_[0])};
          break;
        case What::kKeep:
          kept = values_;
          break;
        case What::kAdd:
          values_ = {Kernel("add", {values_[0], kept[0]}, shape, 0.0)};
          break;
        case What::kCopies:
          break;
      }
    }
    net_.Out(values_[0], SlotKind::kOutput);
  }

  void Backward() {
    net_.Going(kind_.passes == Passes::kBoth ? Direction::kBackward : Direction::kNone);
    const Stage& last = stages_.back();
    std::vector<NodeId> gradients = {net_.Input("t", {last.rows, last.out}, Role::kTangent)};
    std::vector<NodeId> kept;
    for (size_t s = stages_.size(); s-- > 0;) {
      const Stage& stage = stages_[s];
      const Shape shape = {stage.rows, stage.in};
      net_.In(stage.module);
      switch (stage.what) {
        case What::kPoint:
          BackwardPoint(s, gradients);
          break;
        case What::kLinear:
          BackwardLinear(s, gradients);
          break;
        case What::kJoin: {
          const NodeId joined = gradients[0];
          gradients.clear();
          for (int i = 0; i < stages_[s - 1].count; ++i) {
            gradients.push_back(Kernel("unjoin", {joined}, shape, 2 * stage.flops / 3));
          }
          break;
        }
        case What::kSplit:
          gradients = {Kernel("unsplit", gradients, shape, 0.0)};
          break;
        case What::kExchange:
        case What::kCopies:
          gradients = {OnSecond(stage.what, gradients[0])};
          break;
        case What::kKeep:
          gradients = {Kernel("sum", {gradients[0], kept[0]}, shape, 0.0)};
          break;
        case What::kAdd:
          kept = gradients;
          break;
        case What::kReduce:
          break;
      }
    }
    net_.Out(gradients[0], SlotKind::kInputGradient);
  }

  void BackwardPoint(size_t s, std::vector<NodeId>& gradients) {
    const Stage& stage = stages_[s];
    for (size_t i = 0; i < gradients.size(); ++i) {
      const NodeId input = saved_[s][std::min(i, saved_[s].size() - 1)];
      const NodeId above = gradients[i];
      gradients[i] = Kernel("gpoint", {above, input}, {stage.rows, stage.in}, 0.0);
      if (i == 0 && stage.scaled) {
        Reduced(weights_[s][0], Kernel("gscale", {above, input}, weights_[s][0].full, 0.0));
      }
    }
  }

  void BackwardLinear(size_t s, std::vector<NodeId>& gradients) {
    const Stage& stage = stages_[s];
    std::vector<NodeId> inner;
    for (size_t i = weights_[s].size(); i-- > 0;) {
      const Weight& weight = weights_[s][i];
      const NodeId input = saved_[s][std::min(i, saved_[s].size() - 1)];
      const NodeId whole = Whole(weight);
      inner.push_back(
          Product("gx", {gradients[i], whole}, {stage.rows, stage.in}, stage.out * stage.window));
      Reduced(weight, Product("gw", {gradients[i], input}, weight.full, stage.rows));
    }
    std::reverse(inner.begin(), inner.end());
    const bool of_one = saved_[s].size() == 1 || saved_[s][0] == saved_[s].back();
    gradients = inner.size() > 1 && of_one
                    ? std::vector{Kernel("gsum", inner, {stage.rows, stage.in}, 0.0)}
                    : inner;
  }

  void Reduced(const Weight& weight, NodeId gradient) {
    NodeId reduced = gradient;
    if (kind_.sharding == Sharding::kNone) {
      reduced = net_.OnGroup(0).Reduce(Name("r"), gradient);
    } else {
      reduced = net_.OnGroup(0).Scatter(Name("s"), gradient);
      if (kind_.sharding == Sharding::kHybrid) {
        reduced = net_.OnGroup(second_).Reduce(Name("r"), reduced);
      }
    }
    net_.OnGroup(0);
    net_.Out(reduced, SlotKind::kParameterGradient, weight.name);
  }

  const Kind& kind_;
  Random random_;
  Net net_;
  GroupId second_ = 0;
  int64_t width_ = 0, rows_ = 0;
  int nodes_ = 0, next_name_ = 0;  // nodes_: so many at least, roughly
  std::vector<Stage> stages_;
  std::vector<std::vector<Weight>> weights_;  // of a stage
  std::vector<std::vector<NodeId>> saved_;    // of a stage: its inputs
  std::vector<NodeId> values_;
  std::vector<std::pair<NodeId, double>> kernel_us_;
};

}  // namespace

absl::Span<const absl::string_view> GeneratedKinds() {
  static const std::vector<absl::string_view> names = [] {
    std::vector<absl::string_view> all;
    for (const Kind& kind : kKinds) all.push_back(kind.name);
    return all;
  }();
  return names;
}

CapturedGraph GeneratedStep(size_t kind, uint32_t seed, bool large) {
  return Maker(kKinds[kind], seed, large).Make();
}

}  // namespace bucketd::testing
