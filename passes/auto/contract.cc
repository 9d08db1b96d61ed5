#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "passes/auto/problem.h"
#include "passes/base/status_macros.h"
#include "passes/pass/numerics.h"
#include "passes/pass/payload_order.h"
#include "passes/plan/storage.h"

namespace bucketd::search {
namespace {

// Storages listed for all nodes together beyond which a graph is not searched.
constexpr int64_t kMaxListed = 20'000'000;

// The storages that each node stands on, written out and numbered without gaps.
class ListedStorages {
 public:
  explicit ListedStorages(const Graph& graph) : graph_(graph), storages_(graph) {}

  absl::Status Run() {
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (static_cast<int64_t>(lists_.all.size()) > kMaxListed) {
        return absl::ResourceExhaustedError(
            absl::StrCat(graph_.Describe(n), ": nodes up to here alias more than ", kMaxListed,
                         " storages together; mode auto does not search such a graph"));
      }
      storages_.Add(n);
      while (lists_.size() < storages_.size()) List(lists_.size());
    }
    return absl::OkStatus();
  }

  absl::Span<const StorageId> of(NodeId n) const {
    if (storages_.of(n) == Storages::kNone) return {};
    return lists_.of(storages_.of(n));
  }
  // What n made, ascending.
  absl::Span<const StorageId> owned_by(NodeId n) const {
    const int32_t count = storages_.own_count(n);
    if (count == 0) return {};
    // Sets of one storage stand one behind the other, and so do their lists.
    return absl::MakeConstSpan(lists_.of(storages_.first_own(n)).data(), Index(count));
  }
  int64_t own_bytes(NodeId n) const { return storages_.own_bytes(n); }
  const std::vector<int64_t>& bytes() const { return bytes_; }

 private:
  void List(Storages::SetId set) {
    scratch_.clear();
    for (const Storages::SetId part : storages_.parts(set)) {
      const absl::Span<const StorageId> more = lists_.of(part);
      scratch_.insert(scratch_.end(), more.begin(), more.end());
    }
    if (scratch_.empty()) {
      scratch_.push_back(static_cast<StorageId>(bytes_.size()));
      bytes_.push_back(storages_.bytes(set));
    }
    std::sort(scratch_.begin(), scratch_.end());
    scratch_.erase(std::unique(scratch_.begin(), scratch_.end()), scratch_.end());
    lists_.Append(scratch_);
    lists_.Close();
  }

  const Graph& graph_;
  Storages storages_;
  Csr lists_;  // of a set
  std::vector<int64_t> bytes_;
  std::vector<StorageId> scratch_;
};

class Contraction {
 public:
  explicit Contraction(const PassContext& context)
      : context_(context),
        graph_(context.graph),
        storages_(context.graph),
        leader_of_(Index(context.graph.size()), -1) {
    problem_.graph = &context.graph;
    problem_.costs = &context.costs;
    problem_.options = &context.options;
  }

  absl::StatusOr<Problem> Run() && {
    RETURN_IF_ERROR(storages_.Run());
    FindLeaders();
    FindFollowers();
    FindAfter();
    RETURN_IF_ERROR(FindTouches());
    DescribeTransfers();
    FindUses(problem_);
    WalkProgramOrder();
    return std::move(problem_);
  }

 private:
  void FindLeaders() {
    problem_.transfers.resize(graph_.collectives().size());
    const std::vector<Constraints::Edge>& edges = context_.constraints.edges;
    size_t edge = 0;
    std::vector<LeaderId> before;
    for (NodeId n = 0; n < graph_.size(); ++n) {
      before.clear();
      for (const NodeId x : graph_.inputs(n)) before.push_back(leader_of_[Index(x)]);
      for (; edge < edges.size() && edges[edge].after == n; ++edge) {
        before.push_back(leader_of_[Index(edges[edge].before)]);
      }
      const NodeKind kind = graph_.kind(n);
      if (kind == NodeKind::kPlaceholder || kind == NodeKind::kOutput) continue;
      std::sort(before.begin(), before.end());
      before.erase(std::unique(before.begin(), before.end()), before.end());
      if (!before.empty() && before.front() < 0) before.erase(before.begin());
      const bool transfer = kind == NodeKind::kCollective || kind == NodeKind::kWait;
      const bool leads = transfer || context_.costs.node_ps(n) > 0 || storages_.own_bytes(n) > 0 ||
                         before.size() > 1;
      if (leads) {
        AddLeader(n, before);
      } else if (!before.empty()) {
        leader_of_[Index(n)] = before.front();
      }
    }
  }

  void AddLeader(NodeId n, const std::vector<LeaderId>& before) {
    const LeaderId leader = problem_.size();
    const NodeKind kind = graph_.kind(n);
    leader_of_[Index(n)] = leader;
    problem_.node.push_back(n);
    problem_.before.Append(before);
    problem_.before.Close();
    problem_.cost.push_back(kind == NodeKind::kCollective ? 0 : context_.costs.node_ps(n));
    const CollectiveId c = graph_.collective_of(n);
    problem_.start_of.push_back(kind == NodeKind::kCollective ? c : -1);
    problem_.wait_of.push_back(kind == NodeKind::kWait ? c : -1);
    if (kind == NodeKind::kCollective) problem_.transfers[Index(c)].start = leader;
    if (kind == NodeKind::kWait) problem_.transfers[Index(c)].wait = leader;
  }

  void FindFollowers() {
    problem_.followers = MakeCsr(problem_.size(), [&](auto add) {
      for (NodeId n = 0; n < graph_.size(); ++n) {
        const LeaderId leader = leader_of_[Index(n)];
        if (leader >= 0 && problem_.node[Index(leader)] != n) add(leader, n);
      }
    });
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (leader_of_[Index(n)] < 0 && graph_.kind(n) != NodeKind::kOutput) {
        problem_.first.push_back(n);
      }
    }
  }

  void FindAfter() {
    problem_.after = MakeCsr(problem_.size(), [&](auto add) {
      for (LeaderId l = 0; l < problem_.size(); ++l) {
        for (const LeaderId x : problem_.before.of(l)) add(x, l);
      }
    });
  }

  // Appends what node n needs alive while it runs.
  void Touch(NodeId n, std::vector<StorageId>& touched) const {
    const auto add = [&](NodeId x) {
      for (const int32_t s : storages_.of(x)) {
        if (storages_.bytes()[Index(s)] > 0) touched.push_back(s);
      }
    };
    add(n);
    if (graph_.kind(n) == NodeKind::kGetitem) return;
    for (const NodeId x : graph_.inputs(n)) add(x);
  }

  absl::Status FindTouches() {
    problem_.bytes = storages_.bytes();
    problem_.kept.assign(problem_.bytes.size(), false);
    problem_.uses.assign(problem_.bytes.size(), 0);
    for (const NodeId x : graph_.inputs(graph_.output_node())) {
      for (const int32_t s : storages_.of(x)) problem_.kept[Index(s)] = true;
    }
    std::vector<StorageId> touched;
    for (LeaderId l = 0; l < problem_.size(); ++l) {
      touched.clear();
      Touch(problem_.node[Index(l)], touched);
      for (const NodeId n : problem_.followers.of(l)) Touch(n, touched);
      std::sort(touched.begin(), touched.end());
      touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
      for (const StorageId s : touched) ++problem_.uses[Index(s)];
      problem_.touches.Append(touched);
      problem_.touches.Close();
      if (static_cast<int64_t>(problem_.touches.all.size()) > kMaxListed) {
        return absl::ResourceExhaustedError(
            absl::StrCat("more than ", kMaxListed,
                         " uses of storages; mode auto does not search "
                         "such a graph"));
      }
      for (const int32_t s : storages_.owned_by(problem_.node[Index(l)])) {
        if (problem_.bytes[Index(s)] > 0) problem_.owns.all.push_back(s);
      }
      problem_.owns.Close();
      problem_.own_bytes.push_back(storages_.own_bytes(problem_.node[Index(l)]));
    }
    for (const NodeId n : problem_.first) {
      for (const int32_t s : storages_.owned_by(n)) {
        problem_.peak_at_start += problem_.bytes[Index(s)];
        // What no leader touches is gone before the first of them.
        if (problem_.uses[Index(s)] > 0 || problem_.kept[Index(s)]) {
          problem_.live_at_start += problem_.bytes[Index(s)];
        }
      }
    }
    return absl::OkStatus();
  }

  void DescribeTransfers() {
    const std::vector<int32_t> ranks = PayloadRanks(context_);
    for (size_t i = 0; i < problem_.transfers.size(); ++i) {
      const auto id = static_cast<CollectiveId>(i);
      const Collective& c = graph_.collective(id);
      Transfer& t = problem_.transfers[i];
      t.pinned = context_.constraints.pinned[i];
      t.mergeable = MayJoinBucket(context_, id);
      t.group = c.group;
      t.kind = c.kind;
      t.bytes = c.bytes;
      t.out_bytes = graph_.outputs(c.start)[0].bytes;
      t.in_bytes = graph_.outputs(graph_.inputs(c.start)[0])[0].bytes;
      t.alpha_ps = context_.costs.AlphaPs(id);
      t.wire_ps = context_.costs.node_ps(c.start) - t.alpha_ps;
      t.payload_rank = ranks[i];
      t.packable = t.mergeable && ModeOf(graph_, absl::MakeConstSpan(&c.start, 1),
                                         context_.options) == BucketMode::kPacked;
    }
  }

  // Compute and memory of the untouched step.
  void WalkProgramOrder() {
    Problem& p = problem_;
    std::vector<int32_t> left = p.uses;
    int64_t live = p.live_at_start;
    p.ideal_ps.push_back(0);
    const auto release = [&](LeaderId l) {
      for (const StorageId s : p.touches.of(l)) {
        if (--left[Index(s)] == 0 && !p.kept[Index(s)]) live -= p.bytes[Index(s)];
      }
    };
    for (LeaderId l = 0; l < p.size(); ++l) {
      p.ideal_ps.push_back(p.ideal_ps.back() + p.cost[Index(l)]);
      p.live.push_back(live);
      live += p.own_bytes[Index(l)];
      p.live_at.push_back(live);
      const CollectiveId c = p.start_of[Index(l)];
      if (c >= 0 && p.transfer(c).wait >= 0) continue;  // holds its input until its wait
      release(l);
      if (p.wait_of[Index(l)] >= 0) release(p.transfer(p.wait_of[Index(l)]).start);
    }
    p.live.push_back(live);
    p.live_at.push_back(live);
  }

  const PassContext& context_;
  const Graph& graph_;
  ListedStorages storages_;
  std::vector<LeaderId> leader_of_;
  Problem problem_;
};

}  // namespace

absl::StatusOr<Problem> Contract(const PassContext& context) { return Contraction(context).Run(); }

}  // namespace bucketd::search
