#include "passes/pass/dense/dense_regions.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/pass/fit_memory.h"
#include "passes/pass/passes.h"
#include "passes/pass/plan_launch.h"
#include "passes/pass/schedule.h"
#include "passes/pass/stable_sort.h"
#include "passes/pass/tags.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

constexpr char kSkipped[] = "dense-region-skipped";
constexpr int kMaxChain = 16;  // casts and views of one parameter before its gather
constexpr size_t kMaxListed = 20;

// Where the launches of layer i start, i counting layers of `DenseLayers`, N of them: all-gathers
// of the forward before the dense part of layer i - 1, of the backward before that of layer i + 1
// (of the last layer: before what lies behind it), reduce-scatters in the dense part of layer i - 1
// in the backward; what lies behind the last layer counts as layer N. Launches without such a layer
// stay. A dense part is the layer's kernels; with routed experts those of the forward before them
// and of the backward behind them. In a dense part a launch stands before the first kernel behind
// all that it is computed from; casts of parameters come along where they stand later. Waits for
// reduce-scatters stand at the end, with what only they lead to.
//
// Says in diagnostics what did not move, and why; under strict, FAILED_PRECONDITION if a launch has
// no place in a part that is not empty, or one of layer N in an empty one.
class Mover {
 public:
  Mover(const PassContext& context, const DenseLayers& layers, const Plan& plan)
      : context_(context),
        graph_(context.graph),
        layers_(layers),
        plan_(plan),
        items_(context.graph, context.constraints, plan.buckets),
        at_(Index(items_.size()), -1),
        unpacks_(Index(items_.size())),
        reduced_(Index(items_.size())),
        sinks_(Index(items_.size())),
        first_use_(Index(items_.size()), std::numeric_limits<int32_t>::max()) {
    order_.reserve(plan.order.size());
    for (const Step& step : plan.order) {
      order_.push_back(items_.item(step));
      at_[Index(order_.back())] = static_cast<int32_t>(order_.size()) - 1;
    }
  }

  absl::Status FindMoves(std::vector<Diagnostic>& diagnostics) {
    FollowGathers();
    FollowReductions();
    FindRegions();
    for (const Launch& launch : context_.launches) Place(launch);
    if (context_.options.dense_regions == DenseRegions::kStrict && refusals_ > 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          refusals_, " launches have no place in a dense region: ", absl::StrJoin(refused_, "; "),
          refusals_ > refused_.size() ? "; ..." : ""));
    }
    if (!skipped_.nodes.empty()) {
      skipped_.code = kSkipped;
      skipped_.text =
          absl::StrCat(skipped_.nodes.size(),
                       " moves into dense regions are left out: ", absl::StrJoin(lines_, "; "),
                       skipped_.nodes.size() > lines_.size() ? "; ..." : "");
      diagnostics.push_back(skipped_);
    }
    std::sort(moves_.begin(), moves_.end(), [&](const Move& a, const Move& b) {
      return std::make_pair(a.target, at_[Index(a.item)]) <
             std::make_pair(b.target, at_[Index(b.item)]);
    });
    return absl::OkStatus();
  }

  // `sink`: with the waits at the end, else where they were. REQUIRES: FindMoves().
  absl::StatusOr<std::vector<Step>> Order(bool sink) const {
    std::vector<bool> moved(Index(items_.size()));
    std::vector<std::pair<int32_t, int32_t>> placed;  // target, item
    for (const Move& move : moves_) {
      for (const int32_t x : move.chain) {
        if (at_[Index(x)] < move.target || moved[Index(x)]) continue;
        moved[Index(x)] = true;
        placed.emplace_back(move.target, x);
      }
      moved[Index(move.item)] = true;
      placed.emplace_back(move.target, move.item);
    }
    std::vector<int32_t> list, tail;
    list.reserve(order_.size());
    auto next = placed.begin();
    for (size_t i = 0; i < order_.size(); ++i) {
      for (; next != placed.end() && Index(next->first) == i; ++next) list.push_back(next->second);
      const int32_t item = order_[i];
      if (moved[Index(item)]) continue;
      (sink && sinks_[Index(item)] ? tail : list).push_back(item);
    }
    list.insert(list.end(), tail.begin(), tail.end());
    const std::optional<std::vector<int32_t>> sorted = StableTopologicalSort(list, items_);
    if (!sorted) return absl::InternalError("dense regions: the buckets admit no order");
    return items_.steps(*sorted);
  }

 private:
  struct Move {
    int32_t target, item;        // target: a position of the order that came in
    std::vector<int32_t> chain;  // items that the launch takes along
  };
  using Positions = std::vector<int32_t>;

  bool IsNode(int32_t item) const { return item < graph_.size(); }
  NodeId StartNode(const Launch& launch) const { return FirstStart(graph_, plan_, launch); }
  int32_t StartItem(const Launch& launch) const { return items_.item_of(StartNode(launch)); }
  int32_t WaitItem(const Launch& launch) const {
    return items_.item_of(graph_.collective(graph_.collective_of(StartNode(launch))).wait);
  }

  // Changes the form of what it gets, or waits for it.
  bool IsPassive(int32_t item) const {
    if (!IsNode(item)) return items_.step(item).kind == Step::Kind::kWait;
    const NodeKind kind = graph_.kind(item);
    if (kind == NodeKind::kWait || kind == NodeKind::kGetitem) return true;
    return kind == NodeKind::kCall && !graph_.is_compute(item) && !graph_.is_ordered(item);
  }

  // Casts and views that only lead to the launch's inputs; `ready`: the last position of what they
  // are computed from.
  std::vector<int32_t> ChainOf(int32_t start, int32_t& ready) const {
    std::vector<int32_t> chain;
    ready = -1;
    for (int32_t x : items_.before(start)) {
      for (int length = 0; length < kMaxChain; ++length) {
        const bool link = IsNode(x) && graph_.kind(x) != NodeKind::kWait && IsPassive(x) &&
                          items_.before(x).size() == 1;
        if (!link) break;
        chain.push_back(x);
        x = items_.before(x)[0];
      }
      ready = std::max(ready, at_[Index(x)]);
    }
    std::sort(chain.begin(), chain.end(),
              [&](int32_t a, int32_t b) { return at_[Index(a)] < at_[Index(b)]; });
    chain.erase(std::unique(chain.begin(), chain.end()), chain.end());
    return chain;
  }

  // What only prepares or unpacks gathers, and where their results are first used.
  void FollowGathers() {
    std::vector<bool> start(Index(items_.size()));
    for (const Launch& launch : context_.launches) {
      if (!Gathers(launch.kind)) continue;
      const int32_t item = StartItem(launch);
      start[Index(item)] = unpacks_[Index(item)] = true;
      int32_t ready = -1;
      for (const int32_t x : ChainOf(item, ready)) unpacks_[Index(x)] = true;
    }
    for (const int32_t item : order_) {
      if (unpacks_[Index(item)] || !IsPassive(item) || items_.before(item).empty()) continue;
      bool all = true;
      for (const int32_t x : items_.before(item)) all = all && unpacks_[Index(x)];
      unpacks_[Index(item)] = all;
    }
    for (size_t i = order_.size(); i-- > 0;) {
      int32_t& use = first_use_[Index(order_[i])];
      for (const int32_t x : items_.after(order_[i])) {
        use = std::min(
            use, unpacks_[Index(x)] && !start[Index(x)] ? first_use_[Index(x)] : at_[Index(x)]);
      }
    }
  }

  // Waits for reduce-scatters with what only they lead to; where that is all the way to the
  // outputs, they may stand at the end.
  void FollowReductions() {
    for (const Launch& launch : context_.launches) {
      if (Scatters(launch.kind)) reduced_[Index(WaitItem(launch))] = true;
    }
    for (const int32_t item : order_) {
      if (reduced_[Index(item)] || !IsPassive(item)) continue;
      bool any = false, all = true;
      for (const int32_t x : items_.before(item)) {
        any = any || reduced_[Index(x)];
        all =
            all && (reduced_[Index(x)] || (IsNode(x) && graph_.kind(x) == NodeKind::kPlaceholder));
      }
      reduced_[Index(item)] = any && all;
    }
    for (size_t i = order_.size(); i-- > 0;) {
      bool sinks = reduced_[Index(order_[i])];
      for (const int32_t x : items_.after(order_[i])) {
        sinks = sinks && (sinks_[Index(x)] || x == items_.output());
      }
      sinks_[Index(order_[i])] = sinks;
    }
  }

  struct Region {
    int32_t layer = -1;
    bool experts = false;
  };

  // Regions by module, each module looked at once.
  class Modules {
   public:
    explicit Modules(const DenseLayers& layers) : layers_(layers) {
      for (const std::string& module : layers.on_top) at_.emplace(module, layers.top());
      for (size_t i = 0; i < layers.names.size(); ++i) {
        at_[layers.names[i]] = static_cast<int32_t>(i);
      }
      experts_.insert(layers.experts.begin(), layers.experts.end());
    }
    Region Of(StringId id, absl::string_view module) {
      const auto [it, added] = seen_.emplace(id, Region());
      if (!added) return it->second;
      for (size_t end = 0; end < module.size(); ++end) {
        end = std::min(module.find('.', end), module.size());
        const auto found = at_.find(module.substr(0, end));
        if (found != at_.end()) it->second.layer = found->second;
      }
      const int32_t layer = it->second.layer;
      it->second.experts = layer >= 0 && layer < layers_.top() &&
                           experts_.contains(ChildOf(layers_.names[Index(layer)], module));
      return it->second;
    }

   private:
    const DenseLayers& layers_;
    absl::flat_hash_map<absl::string_view, int32_t> at_;
    absl::flat_hash_set<absl::string_view> experts_;
    absl::flat_hash_map<StringId, Region> seen_;
  };

  bool IsKernel(NodeId n) const {
    return graph_.kind(n) == NodeKind::kCall && !graph_.is_view(n) && !unpacks_[Index(n)] &&
           !reduced_[Index(n)] && (graph_.is_compute(n) || context_.costs.node_ps(n) > 0);
  }

  void FindRegions() {
    regions_.resize(layers_.names.size() + 1);
    std::vector<std::array<Positions, 2>> experts(regions_.size());
    const NodeId last_forward = LastForwardNode(graph_);
    Modules modules(layers_);
    for (const int32_t item : order_) {
      if (!IsNode(item)) continue;
      const bool exchange = graph_.kind(item) == NodeKind::kCollective &&
                            Exchanges(graph_.collective(graph_.collective_of(item)).kind);
      if (!exchange && !IsKernel(item)) continue;
      const Region region = modules.Of(graph_.module_id(item), graph_.module(item));
      if (region.layer < 0) continue;
      // An exchange that the layer itself makes stands for the experts, too.
      const bool own = exchange && region.layer < layers_.top() &&
                       graph_.module(item) == layers_.names[Index(region.layer)];
      if (exchange && !region.experts && !own) continue;
      const bool backward = DirectionOf(graph_, item, last_forward) == Direction::kBackward;
      auto& into = region.experts || own ? experts : regions_;
      into[Index(region.layer)][backward].push_back(at_[Index(item)]);
    }
    for (size_t i = 0; i < regions_.size(); ++i) {
      Positions& forward = regions_[i][0];
      Positions& backward = regions_[i][1];
      if (!experts[i][0].empty()) {
        forward.erase(std::lower_bound(forward.begin(), forward.end(), experts[i][0].front()),
                      forward.end());
      }
      if (!experts[i][1].empty()) {
        backward.erase(backward.begin(),
                       std::upper_bound(backward.begin(), backward.end(), experts[i][1].back()));
      }
    }
  }

  void Skip(const Launch& launch, absl::string_view why, bool refused) {
    std::string line =
        absl::StrCat(context_.units[Index(launch.unit)].name, " ", Name(launch.direction), " ",
                     Name(launch.kind), " (", graph_.Describe(StartNode(launch)), "): ", why);
    skipped_.nodes.push_back(StartNode(launch));
    if (refused && ++refusals_ <= kMaxListed) refused_.push_back(line);
    if (lines_.size() < kMaxListed) lines_.push_back(std::move(line));
  }

  std::string Describe(int32_t region, bool backward) const {
    return absl::StrCat(
        "the ", backward ? "backward" : "forward", " of ",
        region == layers_.top() ? "what follows the last layer" : layers_.names[Index(region)]);
  }

  void Place(const Launch& launch) {
    const bool gather = Gathers(launch.kind);
    if (!gather && !Scatters(launch.kind)) return;
    if (!gather && !sinks_[Index(WaitItem(launch))]) {
      Skip(launch, "its wait cannot stand at the end, more than outputs follow on it", false);
    }
    const int32_t layer = layers_.of_unit[Index(launch.unit)];
    if (layer == DenseLayers::kNone) return;
    const bool backward = !gather || launch.direction == Direction::kBackward;
    const int32_t region = gather && backward ? layer + 1 : layer - 1;
    if (region < 0 || region > layers_.top()) return;
    const Positions& positions = regions_[Index(region)][backward];
    const std::string name = Describe(region, backward);
    if (positions.empty()) {
      Skip(launch, absl::StrCat(name, " has no dense region"), layer == layers_.top());
      return;
    }
    const int32_t item = StartItem(launch);
    int32_t ready = -1;
    Move move{-1, item, {}};
    if (gather) {
      move.chain = ChainOf(item, ready);
    } else {
      for (const int32_t x : items_.before(item)) ready = std::max(ready, at_[Index(x)]);
    }
    const auto target = std::upper_bound(positions.begin(), positions.end(), ready);
    if (target == positions.end()) {
      Skip(launch, absl::StrCat("its inputs are ready only behind the dense region of ", name),
           true);
    } else if (gather && first_use_[Index(item)] <= *target) {
      Skip(launch, absl::StrCat("it is used before the dense region of ", name), true);
    } else {
      move.target = *target;
      moves_.push_back(std::move(move));
    }
  }

  const PassContext& context_;
  const Graph& graph_;
  const DenseLayers& layers_;
  const Plan& plan_;
  ItemGraph items_;
  std::vector<int32_t> order_, at_;                // items; positions of items
  std::vector<bool> unpacks_;                      // items that only prepare or unpack gathers
  std::vector<bool> reduced_, sinks_;              // items; see FollowReductions()
  std::vector<int32_t> first_use_;                 // positions, by item
  std::vector<std::array<Positions, 2>> regions_;  // by layer; forward, backward
  std::vector<Move> moves_;
  Diagnostic skipped_;
  std::vector<std::string> lines_, refused_;
  size_t refusals_ = 0;
};

// Starts launches in the dense regions of neighbouring layers, where the options ask for it. Where
// memory would exceed its limit, waits keep their places, or else the plan stays as it is.
class DenseRegionsPass : public Pass {
 public:
  absl::string_view name() const override { return "dense-regions"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (context.options.dense_regions == DenseRegions::kOff || context.launches.empty()) {
      return false;
    }
    ASSIGN_OR_RETURN(const DenseLayers layers, FindDenseLayers(context));
    if (layers.names.empty()) {
      plan.diagnostics.push_back({kSkipped, "no unit is a layer: its name has no number", {}});
      return false;
    }
    Mover mover(context, layers, plan);
    RETURN_IF_ERROR(mover.FindMoves(plan.diagnostics));
    const std::vector<Step> before = plan.order;
    const int64_t peak = Simulate(context.graph, plan, context.costs).prediction.peak_bytes;
    const int64_t limit = std::max(peak, MemoryLimit(context));
    int64_t least = 0;
    for (const bool sink : {true, false}) {
      ASSIGN_OR_RETURN(plan.order, mover.Order(sink));
      const int64_t needed = Simulate(context.graph, plan, context.costs).prediction.peak_bytes;
      if (needed <= limit) {
        if (least > 0) Report("waits for reduce-scatters keep their place", least, limit, plan);
        return plan.order != before;
      }
      least = needed;
    }
    plan.order = before;
    Report("no launch moves into a dense region", least, limit, plan);
    return false;
  }

 private:
  static void Report(absl::string_view what, int64_t needed, int64_t limit, Plan& plan) {
    plan.diagnostics.push_back(
        {"dense-region-memory",
         absl::StrCat("to stay within memory, ", what, ": the peak would be ", needed,
                      " bytes, the limit is ", limit),
         {}});
  }
};

}  // namespace

std::unique_ptr<Pass> MakeDenseRegionsPass() { return std::make_unique<DenseRegionsPass>(); }

}  // namespace bucketd
