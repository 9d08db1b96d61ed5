#include "passes/pass/constraints.h"

#include <algorithm>
#include <tuple>

#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/plan/storage.h"

namespace bucketd {
namespace {

// Walks program order and keeps, for each storage that is written somewhere, its last writer and
// those who used it since.
class StorageWalk {
 public:
  StorageWalk(const Graph& graph, const StorageSets& sets, Constraints& out)
      : graph_(graph),
        sets_(sets),
        out_(out),
        written_(Index(graph.size())),
        writer_(Index(graph.size()), kNoNode),
        users_(Index(graph.size())) {
    for (NodeId n = 0; n < graph_.size(); ++n) {
      for (const NodeId x : graph_.mutates(n)) {
        for (const NodeId storage : sets_.of(x)) written_[Index(storage)] = true;
      }
    }
  }

  void Run() {
    for (NodeId n = 0; n < graph_.size(); ++n) {
      for (const NodeId x : graph_.inputs(n)) {
        for (const NodeId storage : sets_.of(x)) Use(n, storage);
      }
      if (graph_.kind(n) == NodeKind::kWait) EndUses(n);
      for (const NodeId x : graph_.mutates(n)) {
        for (const NodeId storage : sets_.of(x)) Write(n, storage);
      }
    }
    for (CollectiveId c = 0; c < static_cast<CollectiveId>(graph_.collectives().size()); ++c) {
      const Collective& collective = graph_.collective(c);
      bool touched = Written(collective.start) || !graph_.mutates(collective.start).empty();
      if (collective.wait != kNoNode) touched = touched || Written(collective.wait);
      for (const NodeId x : graph_.inputs(collective.start)) touched = touched || Written(x);
      if (touched) out_.pinned[Index(c)] = true;
    }
  }

 private:
  bool Written(NodeId n) const {
    for (const NodeId storage : sets_.of(n)) {
      if (written_[Index(storage)]) return true;
    }
    return false;
  }

  NodeId Until(NodeId n) const {
    if (graph_.kind(n) != NodeKind::kCollective) return n;
    const NodeId wait = graph_.collective(graph_.collective_of(n)).wait;
    return wait == kNoNode ? n : wait;
  }

  // The later of a node's two ends that still stands before `after`.
  void Add(NodeId n, NodeId after) {
    if (n == after) return;
    const NodeId until = Until(n);
    if (until != after) out_.edges.push_back({until < after ? until : n, after});
  }

  void Use(NodeId n, NodeId storage) {
    if (!written_[Index(storage)]) return;
    if (writer_[Index(storage)] != kNoNode) Add(writer_[Index(storage)], n);
    users_[Index(storage)].push_back(n);
  }

  // Whoever wrote since the start has forgotten it; who writes from now on stays behind the wait.
  void EndUses(NodeId wait) {
    const NodeId start = graph_.collective(graph_.collective_of(wait)).start;
    for (const NodeId x : graph_.inputs(start)) {
      for (const NodeId storage : sets_.of(x)) {
        if (written_[Index(storage)]) users_[Index(storage)].push_back(wait);
      }
    }
  }

  void Write(NodeId n, NodeId storage) {
    if (writer_[Index(storage)] != kNoNode) Add(writer_[Index(storage)], n);
    for (const NodeId user : users_[Index(storage)]) Add(user, n);
    users_[Index(storage)].clear();
    writer_[Index(storage)] = n;
  }

  const Graph& graph_;
  const StorageSets& sets_;
  Constraints& out_;
  std::vector<bool> written_;
  std::vector<NodeId> writer_;
  std::vector<std::vector<NodeId>> users_;
};

}  // namespace

absl::StatusOr<Constraints> FindConstraints(const Graph& graph) {
  Constraints out;
  out.pinned.resize(graph.collectives().size());
  NodeId last_ordered = kNoNode;
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (!graph.is_ordered(n)) continue;
    if (last_ordered != kNoNode) out.edges.push_back({last_ordered, n});
    last_ordered = n;
    if (graph.collective_of(n) >= 0) out.pinned[Index(graph.collective_of(n))] = true;
  }
  if (graph.has_mutation()) {
    ASSIGN_OR_RETURN(const StorageSets sets, StorageSets::Of(graph));
    StorageWalk(graph, sets, out).Run();
  }
  std::sort(out.edges.begin(), out.edges.end(),
            [](const Constraints::Edge& a, const Constraints::Edge& b) {
              return std::tie(a.after, a.before) < std::tie(b.after, b.before);
            });
  out.edges.erase(std::unique(out.edges.begin(), out.edges.end(),
                              [](const Constraints::Edge& a, const Constraints::Edge& b) {
                                return a.after == b.after && a.before == b.before;
                              }),
                  out.edges.end());
  return out;
}

}  // namespace bucketd
