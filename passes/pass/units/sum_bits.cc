#include "passes/pass/units/sum_bits.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/ir/bucket_key.h"
#include "passes/pass/numerics.h"
#include "passes/pass/payload_order.h"
#include "passes/pass/units/units.h"

namespace bucketd {
namespace {

// What eager training reduces as one: a unit's gradients that may travel together.
struct EagerLaunch {
  int32_t unit = 0;
  std::vector<NodeId> members;  // in order of payloads
};

// Compares the order in which each gradient is added up with that of the unplanned graph and that
// of eager training.
class SumOrders {
 public:
  SumOrders(const PassContext& context, const Plan& plan)
      : context_(context),
        graph_(context.graph),
        plan_(plan),
        bucket_of_(graph_.collectives().size(), -1) {
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      for (const NodeId member : plan.buckets[b].members) {
        bucket_of_[Index(graph_.collective_of(member))] = static_cast<BucketId>(b);
      }
    }
    for (const std::string& fqn : context.options.parameter_order) listed_.insert(fqn);
  }

  bool reduces() const {
    const auto tagged = [&](const Collective& c) {
      return Reduces(c.kind) && TagOf(graph_.collective_of(c.start)).tag != Tag::kNone;
    };
    return std::any_of(graph_.collectives().begin(), graph_.collectives().end(), tagged);
  }

  // "": each sum is that of the unplanned graph.
  std::string WhyNotUnplanned() const {
    for (const Bucket& bucket : plan_.buckets) {
      if (!Reduces(First(bucket.members).kind) || HasOneOrder(bucket.members)) continue;
      const bool alone = plan_.backend == "gloo" && Scatters(First(bucket.members).kind) &&
                         (bucket.mode == BucketMode::kGrouped ||
                          (AddsByRankAlone(bucket.members) && EachAddsByRankAlone(bucket.members)));
      if (!alone) {
        return absl::StrCat("bucket ", bucket.name, " adds ", bucket.members.size(),
                            " gradients as one");
      }
    }
    return "";
  }

  // "": each sum is that of eager training.
  std::string WhyNotEager() const {
    for (const EagerLaunch& launch : EagerLaunches()) {
      const std::string why = WhyNotEager(launch);
      if (!why.empty()) return why;
    }
    return WhyOtherGradients();
  }

 private:
  const CollectiveTag& TagOf(CollectiveId c) const { return context_.tags[c]; }
  const Collective& First(const std::vector<NodeId>& members) const {
    return graph_.collective(graph_.collective_of(members[0]));
  }
  int64_t Elements(NodeId member) const { return graph_.outputs(member)[0].elements; }

  // Two addends have one sum.
  bool HasOneOrder(const std::vector<NodeId>& members) const {
    return graph_.group(First(members)).size <= 2;
  }
  bool AddsByRankAlone(const std::vector<NodeId>& members) const {
    int64_t elements = 0;
    for (const NodeId member : members) elements += Elements(member);
    const Collective& c = First(members);
    // What a hint divides by says nothing of the sizes to come.
    return plan_.backend == "gloo" && Scatters(c.kind) && !c.symbolic &&
           ChunksAreSlices(elements, c.dtype);
  }
  bool EachAddsByRankAlone(const std::vector<NodeId>& members) const {
    return std::all_of(members.begin(), members.end(),
                       [&](NodeId member) { return AddsByRankAlone({member}); });
  }
  // As this plan launches it.
  bool LaunchAddsByRankAlone(NodeId member) const {
    const BucketId b = bucket_of_[Index(graph_.collective_of(member))];
    const bool packed = b >= 0 && plan_.buckets[Index(b)].mode == BucketMode::kPacked;
    return packed ? AddsByRankAlone(plan_.buckets[Index(b)].members) : AddsByRankAlone({member});
  }

  std::vector<EagerLaunch> EagerLaunches() const {
    std::vector<EagerLaunch> launches;
    absl::flat_hash_map<std::tuple<int32_t, BucketKey, Direction>, size_t> at;
    for (size_t u = 0; u < context_.units.size(); ++u) {
      for (const CollectiveId c : context_.units[u].collectives) {
        const Collective& collective = graph_.collective(c);
        if (!Reduces(collective.kind)) continue;
        const auto unit = static_cast<int32_t>(u);
        const auto [it, added] = at.emplace(
            std::make_tuple(unit, BucketKey::Of(collective), context_.directions[Index(c)]),
            launches.size());
        if (added) launches.push_back({unit, {}});
        launches[it->second].members.push_back(collective.start);
      }
    }
    const std::vector<int32_t> rank = PayloadRanks(context_);
    for (EagerLaunch& launch : launches) {
      std::sort(launch.members.begin(), launch.members.end(), [&](NodeId a, NodeId b) {
        return rank[Index(graph_.collective_of(a))] < rank[Index(graph_.collective_of(b))];
      });
    }
    return launches;
  }

  std::string WhyNotEager(const EagerLaunch& launch) const {
    const std::vector<NodeId>& members = launch.members;
    const CollectiveId first = graph_.collective_of(members[0]);
    if (HasOneOrder(members)) return "";
    const std::string& unit = context_.units[Index(launch.unit)].name;
    if (TagOf(first).tag == Tag::kDdpAllReduce) return "eager DDP has buckets of its own";
    const BucketId b = bucket_of_[Index(first)];
    if (b < 0 && members.size() == 1) return "";
    if (b >= 0 && plan_.buckets[Index(b)].members == members &&
        plan_.buckets[Index(b)].mode == BucketMode::kPacked) {
      const bool known = std::all_of(members.begin(), members.end(), [&](NodeId member) {
        return listed_.contains(TagOf(graph_.collective_of(member)).parameter);
      });
      if (known) return "";
      if (!AddsByRankAlone(members)) {
        return "the order in which eager training registers parameters was not given";
      }
    }
    const bool none_matters =
        AddsByRankAlone(members) && std::all_of(members.begin(), members.end(),
                                                [&](NodeId m) { return LaunchAddsByRankAlone(m); });
    if (none_matters) return "";
    return absl::StrCat(
        "eager training adds the ", members.size(), " gradients of ", unit, " as one; here ",
        b < 0 ? std::string("they are apart")
              : absl::StrCat(
                    "they are in bucket ", plan_.buckets[Index(b)].name, " of ",
                    plan_.buckets[Index(b)].members.size(),
                    plan_.buckets[Index(b)].mode == BucketMode::kGrouped ? ", grouped" : ""));
  }

  // Sums that differ whatever the buckets: a gradient that is reduced in parts, or over replicas
  // before shards.
  std::string WhyOtherGradients() const {
    absl::flat_hash_map<std::pair<absl::string_view, CollectiveKind>, NodeId> seen;
    absl::flat_hash_set<CollectiveId> in_units;
    for (const Unit& unit : context_.units)
      in_units.insert(unit.collectives.begin(), unit.collectives.end());
    for (size_t i = 0; i < graph_.collectives().size(); ++i) {
      const auto c = static_cast<CollectiveId>(i);
      const Collective& collective = graph_.collective(c);
      const CollectiveTag& tag = TagOf(c);
      if (!Reduces(collective.kind) || tag.tag == Tag::kNone) continue;
      if (!in_units.contains(c)) return "a gradient is of no known unit";
      if (!seen.emplace(std::make_pair(tag.parameter, collective.kind), collective.start).second) {
        return tag.parameter.empty()
                   ? "two gradients have no name"
                   : absl::StrCat("the gradient of ", tag.parameter, " is reduced in parts");
      }
      if (tag.tag == Tag::kFsdpReduceScatter &&
          seen.contains({tag.parameter, CollectiveKind::kAllReduce})) {
        return "the graph adds over replicas first, eager training over shards";
      }
    }
    return "";
  }

  const PassContext& context_;
  const Graph& graph_;
  const Plan& plan_;
  std::vector<BucketId> bucket_of_;  // by collective; -1: alone
  absl::flat_hash_set<absl::string_view> listed_;
};

std::string Text(Bits bits, const std::string& units, const std::string& why_not_eager,
                 const std::string& why_not_unplanned) {
  const std::string eager = absl::StrCat("eager FSDP2 with units ", units);
  switch (bits) {
    case Bits::kBoth:
      return absl::StrCat("gradients have the bits of the unplanned graph and of ", eager);
    case Bits::kEager:
      return absl::StrCat("gradients have the bits of ", eager,
                          ", not of the unplanned graph: ", why_not_unplanned);
    case Bits::kUnplanned:
      return absl::StrCat("gradients have the bits of the unplanned graph, not of eager training: ",
                          why_not_eager);
    default:
      return absl::StrCat(
          "gradients have the bits neither of the unplanned graph nor of eager training: ",
          why_not_unplanned, "; ", why_not_eager);
  }
}

}  // namespace

void SayWhoseBits(const PassContext& context, Plan& plan) {
  PassContext own(context.graph, context.costs, context.options);
  std::vector<Diagnostic> said_elsewhere;
  own.tags = ResolveTags(own.graph, said_elsewhere);
  own.directions = CollectiveDirections(own.graph);
  const absl::Status units = FindUnits(own);
  const SumOrders orders(own, plan);
  const std::string why_not_unplanned = orders.WhyNotUnplanned();
  if (!orders.reduces() && why_not_unplanned.empty()) {
    plan.bits = Bits::kBoth;
    plan.bits_text = "no gradient is reduced here: every bit is that of the unplanned graph";
    return;
  }
  const std::string why_not_eager =
      units.ok() ? orders.WhyNotEager()
                 : std::string("eager training's units are not known: no blocks were found");
  plan.bits = why_not_unplanned.empty() ? (why_not_eager.empty() ? Bits::kBoth : Bits::kUnplanned)
                                        : (why_not_eager.empty() ? Bits::kEager : Bits::kNeither);
  plan.bits_text = Text(plan.bits, ListedUnits(own.units), why_not_eager, why_not_unplanned);
}

}  // namespace bucketd
