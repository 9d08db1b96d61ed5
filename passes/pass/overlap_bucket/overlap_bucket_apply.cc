#include "passes/pass/overlap_bucket/overlap_bucket_apply.h"

#include <algorithm>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/pass/numerics.h"
#include "passes/sim/bucket_costs.h"

namespace bucketd::overlap_bucket {
namespace {

// The order as a list in which buckets take the place of their seeds; items of the model, then two
// tokens a bucket.
class StepList {
 public:
  explicit StepList(const Model& model) : model_(model), at_(Index(model.items())) {
    for (const bool inputs : {true, false}) {
      for (const int32_t item : model.order) {
        const Step step = model.items_of_plan.step(item);
        const bool input = model.policy.placeholders_first && step.kind == Step::Kind::kNode &&
                           model.context.graph.kind(step.id) == NodeKind::kPlaceholder;
        if (input == inputs) at_[Index(item)] = ids_.insert(ids_.end(), item);
      }
    }
  }

  // REQUIRES: buckets come one after the other, from the first.
  void Merge(const FoundBucket& found) {
    std::vector<int32_t> starts;
    for (const int32_t l : found.launches) starts.push_back(model_.launches[Index(l)].start_item);
    auto at = at_[Index(starts.front())];
    std::sort(starts.begin(), starts.end());
    while (std::binary_search(starts.begin(), starts.end(), *at)) ++at;  // its wait stops it
    const auto start = ids_.insert(at, next_token_++);
    ids_.insert(at, next_token_++);
    for (const int32_t l : found.launches) {
      const LaunchInfo& launch = model_.launches[Index(l)];
      ids_.erase(at_[Index(launch.start_item)]);
      ids_.erase(at_[Index(launch.wait_item)]);
      if (model_.policy.absorbed == nullptr) continue;
      const NodeId absorbed = model_.policy.absorbed(model_.context.graph, launch);
      if (absorbed != kNoNode) ids_.splice(start, ids_, at_[Index(absorbed)]);
    }
  }

  const std::list<int32_t>& ids() const { return ids_; }

 private:
  const Model& model_;
  int32_t next_token_ = model_.items();
  std::list<int32_t> ids_;
  std::vector<std::list<int32_t>::iterator> at_;  // of an item
};

class Writer {
 public:
  Writer(const Model& model, const Plan& plan, absl::Span<const FoundBucket> found)
      : model_(model), graph_(model.context.graph), plan_(plan), found_(found) {
    found_of_.assign(model.launches.size(), -1);
    for (size_t f = 0; f < found.size(); ++f) {
      for (const int32_t l : found[f].launches) found_of_[Index(l)] = static_cast<int32_t>(f);
    }
  }

  absl::StatusOr<Applied> Run(const Relations& relations) {
    MakeBuckets();
    const ItemGraph items(graph_, model_.context.constraints, out_.buckets);
    MapItems(items);
    StepList list(model_);
    for (const FoundBucket& found : found_) list.Merge(found);
    std::vector<int32_t> ids;
    for (const int32_t id : list.ids()) ids.push_back(now_[Index(id)]);
    std::vector<Edge> kept;
    for (const Edge& edge : relations.Edges()) {
      const Edge mapped = {now_[Index(edge.before)], now_[Index(edge.after)]};
      if (mapped.before != mapped.after) kept.push_back(mapped);
    }
    ASSIGN_OR_RETURN(const std::vector<int32_t> order,
                     relations.Order(items, ids, std::move(kept)));
    Number(items, order);
    MapOverlap();
    return std::move(out_);
  }

 private:
  // Kept ones first, then found ones; Number() gives them their places.
  void MakeBuckets() {
    std::vector<bool> taken(plan_.buckets.size());
    for (size_t l = 0; l < found_of_.size(); ++l) {
      const BucketId bucket = model_.launches[l].bucket;
      if (found_of_[l] >= 0 && bucket >= 0) taken[Index(bucket)] = true;
    }
    kept_.assign(plan_.buckets.size(), -1);
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      if (taken[b]) continue;
      kept_[b] = static_cast<BucketId>(out_.buckets.size());
      out_.buckets.push_back(plan_.buckets[b]);
    }
    for (const FoundBucket& found : found_) {
      Bucket bucket;
      for (const int32_t l : found.launches) {
        const LaunchInfo& launch = model_.launches[Index(l)];
        const std::vector<NodeId> members = MembersOf(graph_, plan_, launch);
        bucket.members.insert(bucket.members.end(), members.begin(), members.end());
      }
      bucket.mode = ModeOf(graph_, bucket.members, model_.context.options);
      out_.bucket_of_found.push_back(static_cast<BucketId>(out_.buckets.size()));
      out_.buckets.push_back(std::move(bucket));
    }
  }

  // now_: of an item of the model, or a token, the item of the new plan.
  void MapItems(const ItemGraph& items) {
    const ItemGraph& old = model_.items_of_plan;
    for (int32_t item = 0; item < model_.items(); ++item) now_.push_back(item);
    for (size_t b = 0; b < kept_.size(); ++b) {
      if (kept_[b] < 0) continue;
      const auto bucket = static_cast<BucketId>(b);
      now_[Index(old.start_item(bucket))] = items.start_item(kept_[b]);
      now_[Index(old.wait_item(bucket))] = items.wait_item(kept_[b]);
    }
    for (size_t f = 0; f < found_.size(); ++f) {
      const BucketId bucket = out_.bucket_of_found[f];
      for (const int32_t l : found_[f].launches) {
        now_[Index(model_.launches[Index(l)].start_item)] = items.start_item(bucket);
        now_[Index(model_.launches[Index(l)].wait_item)] = items.wait_item(bucket);
      }
      now_.push_back(items.start_item(bucket));
      now_.push_back(items.wait_item(bucket));
    }
  }

  void Number(const ItemGraph& items, const std::vector<int32_t>& order) {
    std::vector<BucketId> number(out_.buckets.size());
    std::vector<Bucket> sorted;
    for (const int32_t item : order) {
      Step step = items.step(item);
      if (step.kind == Step::Kind::kStart) {
        number[Index(step.id)] = static_cast<BucketId>(sorted.size());
        sorted.push_back(std::move(out_.buckets[Index(step.id)]));
      }
      if (step.kind != Step::Kind::kNode) step.id = number[Index(step.id)];
      out_.order.push_back(step);
    }
    out_.buckets = std::move(sorted);
    for (BucketId& bucket : out_.bucket_of_found) bucket = number[Index(bucket)];
    for (BucketId& bucket : kept_) bucket = bucket < 0 ? -1 : number[Index(bucket)];
    for (const BucketId b : out_.bucket_of_found) {
      Bucket& bucket = out_.buckets[Index(b)];
      const Collective& c = graph_.collective(graph_.collective_of(bucket.members.front()));
      bucket.name = absl::StrCat(Name(c.kind), " ", graph_.group(c).mesh_dim, " ", b);
      LayOut(graph_, bucket);
    }
  }

  void MapOverlap() {
    const std::vector<int32_t> position = PlacesOf(graph_, out_.buckets, out_.order);
    std::vector<bool> written(found_.size());
    for (size_t l = 0; l < model_.launches.size(); ++l) {
      const int32_t f = found_of_[l];
      if (f < 0) {
        LaunchOverlap overlap = OverlapOf(static_cast<int32_t>(l));
        overlap.bucket = overlap.bucket < 0 ? -1 : kept_[Index(overlap.bucket)];
        out_.overlap.push_back(std::move(overlap));
      } else if (!written[Index(f)]) {
        written[Index(f)] = true;
        out_.overlap.push_back(Merged(Index(f), position));
      }
    }
  }

  LaunchOverlap OverlapOf(int32_t l) const {
    if (Index(l) < model_.context.overlap.size()) return model_.context.overlap[Index(l)];
    const LaunchInfo& launch = model_.launches[Index(l)];
    const CollectiveId alone = launch.bucket < 0 ? launch.collective : -1;
    return {launch.bucket, alone, launch.est_ps, launch.exposed_ps, {}};
  }

  LaunchOverlap Merged(size_t f, const std::vector<int32_t>& position) const {
    LaunchOverlap merged;
    merged.bucket = out_.bucket_of_found[f];
    const Bucket& bucket = out_.buckets[Index(merged.bucket)];
    merged.est_ps = internal::CostsOf(graph_, bucket, model_.context.costs).collective_ps;
    int64_t hidden = 0;
    for (const int32_t l : found_[f].launches) {
      const LaunchOverlap one = OverlapOf(l);
      hidden += one.est_ps - one.exposed_ps;
      merged.hidden_by.insert(merged.hidden_by.end(), one.hidden_by.begin(), one.hidden_by.end());
    }
    merged.exposed_ps = std::max<int64_t>(0, merged.est_ps - hidden);
    const NodeId member = bucket.members.front();
    const int32_t start = position[Index(member)];
    const int32_t wait = position[Index(graph_.collective(graph_.collective_of(member)).wait)];
    // Upstream's known defects may have moved some out.
    merged.hidden_by.erase(
        std::remove_if(
            merged.hidden_by.begin(), merged.hidden_by.end(),
            [&](NodeId n) { return position[Index(n)] <= start || position[Index(n)] >= wait; }),
        merged.hidden_by.end());
    std::sort(merged.hidden_by.begin(), merged.hidden_by.end(), [&](NodeId a, NodeId b) {
      return std::make_pair(position[Index(a)], a) < std::make_pair(position[Index(b)], b);
    });
    merged.hidden_by.erase(std::unique(merged.hidden_by.begin(), merged.hidden_by.end()),
                           merged.hidden_by.end());
    return merged;
  }

  const Model& model_;
  const Graph& graph_;
  const Plan& plan_;
  absl::Span<const FoundBucket> found_;
  std::vector<int32_t> found_of_;  // of a launch
  std::vector<BucketId> kept_;     // of an old bucket
  std::vector<int32_t> now_;
  Applied out_;
};

}  // namespace

absl::StatusOr<Applied> Apply(const Model& model, const Plan& plan,
                              absl::Span<const FoundBucket> found, const Relations& relations) {
  return Writer(model, plan, found).Run(relations);
}

}  // namespace bucketd::overlap_bucket
