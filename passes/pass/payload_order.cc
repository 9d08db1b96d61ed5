#include "passes/pass/payload_order.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "passes/pass/passes.h"

namespace bucketd {
namespace {

using Rank = std::pair<int64_t, int64_t>;  // place in the caller's list, then in the graph
constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

std::vector<Rank> Ranks(const PassContext& context) {
  absl::flat_hash_map<absl::string_view, int64_t> listed, seen;
  for (const std::string& fqn : context.options.parameter_order) {
    listed.emplace(fqn, static_cast<int64_t>(listed.size()));
  }
  std::vector<Rank> ranks;
  ranks.reserve(context.tags.of.size());
  for (size_t c = 0; c < context.tags.of.size(); ++c) {
    const absl::string_view fqn = context.tags.of[c].parameter;
    const auto it = listed.find(fqn);
    // Without a name a collective is like no other.
    const int64_t first = fqn.empty() ? static_cast<int64_t>(c)
                                      : seen.emplace(fqn, static_cast<int64_t>(c)).first->second;
    ranks.emplace_back(it == listed.end() ? kUnknown : it->second, first);
  }
  return ranks;
}

// Puts each bucket's members into the order in which eager training registered their parameters,
// for all-gathers and reduce-scatters alike, and lays them out anew. Parameters that the caller's
// list lacks follow in order of the graph's first collective for them.
class PayloadOrder : public Pass {
 public:
  absl::string_view name() const override { return "payload-order"; }
  bool needs_tags() const override { return true; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (plan.buckets.empty()) return false;
    const std::vector<Rank> ranks = Ranks(context);
    bool changed = false;
    Diagnostic unknown;
    for (Bucket& bucket : plan.buckets) {
      const auto rank = [&](NodeId start) {
        return ranks[static_cast<size_t>(context.graph.collective_of(start))];
      };
      std::vector<NodeId> members = bucket.members;
      std::sort(members.begin(), members.end());
      std::stable_sort(members.begin(), members.end(),
                       [&](NodeId a, NodeId b) { return rank(a) < rank(b); });
      for (const NodeId member : members) {
        if (rank(member).first == kUnknown) unknown.nodes.push_back(member);
      }
      if (members == bucket.members) continue;
      bucket.members = std::move(members);
      LayOut(context.graph, bucket);
      changed = true;
    }
    Report(context, unknown, plan.diagnostics);
    return changed;
  }

 private:
  static void Report(const PassContext& context, Diagnostic& unknown,
                     std::vector<Diagnostic>& diagnostics) {
    if (unknown.nodes.empty()) return;
    unknown.code = "payload-order-unknown";
    unknown.text =
        context.options.parameter_order.empty()
            ? std::string(
                  "no parameter order was given: payloads keep the graph's order, which "
                  "need not be that of eager training")
            : absl::StrCat(unknown.nodes.size(),
                           " members are not in the parameter order that was given; they follow "
                           "behind the known ones, first ",
                           context.graph.Describe(unknown.nodes[0]));
    if (context.options.parameter_order.empty()) unknown.nodes.clear();
    diagnostics.push_back(std::move(unknown));
  }
};

}  // namespace

std::vector<int32_t> PayloadRanks(const PassContext& context) {
  const std::vector<Rank> ranks = Ranks(context);
  std::vector<int32_t> order(ranks.size()), places(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return ranks[static_cast<size_t>(a)] < ranks[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < order.size(); ++i) {
    places[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  }
  return places;
}

std::unique_ptr<Pass> MakePayloadOrderPass() { return std::make_unique<PayloadOrder>(); }

}  // namespace bucketd
