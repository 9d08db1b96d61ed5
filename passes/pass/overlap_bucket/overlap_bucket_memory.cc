#include "passes/pass/overlap_bucket/overlap_bucket_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/index.h"
#include "passes/pass/fit_memory.h"
#include "passes/sim/simulator.h"

namespace bucketd::overlap_bucket {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The first and the last step at which a bucket keeps memory alive: from what it sends, to where
// what it brings is used last, through views.
class Lifetimes {
 public:
  Lifetimes(const Graph& graph, const Plan& plan)
      : graph_(graph), position_(PlacesOf(graph, plan.buckets, plan.order)), last_use_(position_) {
    // Users come behind in a graph, whatever their places are in the plan.
    for (NodeId n = graph.size() - 1; n >= 0; --n) {
      for (const NodeId user : graph.users(n)) {
        const bool goes_on = graph.is_view(user);
        last_use_[Index(n)] =
            std::max(last_use_[Index(n)], (goes_on ? last_use_ : position_)[Index(user)]);
      }
    }
  }

  std::pair<int32_t, int32_t> Of(const Bucket& bucket) const {
    int32_t first = std::numeric_limits<int32_t>::max(), last = 0;
    for (const NodeId member : bucket.members) {
      first = std::min(first, position_[Index(member)]);
      for (const NodeId x : graph_.inputs(member)) {
        if (graph_.kind(x) != NodeKind::kPlaceholder) {
          first = std::min(first, position_[Index(x)]);
        }
      }
      last = std::max(last, last_use_[Index(Wait(member))]);
    }
    return {first, last};
  }

 private:
  NodeId Wait(NodeId member) const { return graph_.collective(graph_.collective_of(member)).wait; }

  const Graph& graph_;
  std::vector<int32_t> position_, last_use_;
};

}  // namespace

MemoryFit::MemoryFit(const Model& model, const Plan& plan)
    : model_(model), before_(plan), byte_limits_(model.launches.size(), kUnlimited) {}

// Found buckets that are alive where memory may be above the limit; all of them if none is.
std::vector<size_t> MemoryFit::Culprits(const Plan& plan, const std::vector<int64_t>& live,
                                        const Applied& applied) const {
  const Graph& graph = model_.context.graph;
  std::vector<int32_t> over = {0};  // steps before this one that are above the limit
  for (size_t i = 0; i < live.size(); ++i) {
    over.push_back(over.back() + (MayExceed(graph, plan, live, i, limit_) ? 1 : 0));
  }
  const Lifetimes lifetimes(graph, plan);
  std::vector<size_t> culprits, all;
  for (size_t f = 0; f < applied.bucket_of_found.size(); ++f) {
    all.push_back(f);
    const auto [first, last] = lifetimes.Of(plan.buckets[Index(applied.bucket_of_found[f])]);
    if (over[Index(last) + 1] > over[Index(first)]) culprits.push_back(f);
  }
  return culprits.empty() ? all : culprits;
}

bool MemoryFit::Shrink(const Found& found, const Applied& applied) {
  if (found.buckets.empty()) return false;
  const PassContext& context = model_.context;
  Plan plan;
  plan.node_count = before_.node_count;
  plan.buckets = applied.buckets;
  plan.order = applied.order;
  const Simulation simulation = Simulate(context.graph, plan, context.costs, true);
  const int64_t peak = simulation.prediction.peak_bytes;
  if (peak <= MemoryLimit(context)) return false;
  if (limit_ < 0) {
    limit_ = std::max(MemoryLimit(context),
                      Simulate(context.graph, before_, context.costs).prediction.peak_bytes);
  }
  if (peak <= limit_) return false;
  if (++round_ >= kRounds) {
    // Launches of no bytes still merge within 0; a round later, within -1, nothing does.
    std::fill(byte_limits_.begin(), byte_limits_.end(), round_ == kRounds ? 0 : -1);
    return true;
  }
  for (const size_t f : Culprits(plan, simulation.live_bytes, applied)) {
    const FoundBucket& bucket = found.buckets[f];
    const bool dissolve = bucket.launches.size() == 2 || round_ == kRounds - 1;
    for (const int32_t l : bucket.launches) {
      byte_limits_[Index(l)] = std::min(byte_limits_[Index(l)], dissolve ? 0 : bucket.bytes / 2);
    }
  }
  return true;
}

void MemoryFit::Report(std::vector<Diagnostic>& diagnostics) const {
  Diagnostic dissolved;
  for (size_t l = 0; l < byte_limits_.size(); ++l) {
    if (byte_limits_[l] == kUnlimited || model_.launches[l].key < 0) continue;
    dissolved.nodes.push_back(model_.context.graph.collective(model_.launches[l].collective).start);
  }
  if (dissolved.nodes.empty()) return;
  std::sort(dissolved.nodes.begin(), dissolved.nodes.end());
  dissolved.code = "bucket-dissolved";
  dissolved.text = absl::StrCat("to stay within ", limit_, " bytes of memory, buckets of ",
                                dissolved.nodes.size(), " launches were made smaller or dissolved");
  diagnostics.push_back(std::move(dissolved));
}

}  // namespace bucketd::overlap_bucket
