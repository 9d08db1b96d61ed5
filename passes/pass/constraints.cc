#include "passes/pass/constraints.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "passes/base/csr.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/plan/storage.h"

namespace bucketd {
namespace {

// Looks at storages and sets beyond which a graph is not planned: a bound on time for hostile
// input.
constexpr int64_t kMaxLooks = 200'000'000;

// Walks program order and keeps, for each storage that is written somewhere, its last writer, and
// for each set who used it. Who used a storage since it was last written is found among the users
// of the sets that it is in: were they kept for each storage, a tuple of thousands of tensors with
// thousands of readers would take their product in memory.
class StorageWalk {
 public:
  StorageWalk(const Graph& graph, const StorageSets& sets, Constraints& out)
      : graph_(graph),
        sets_(sets),
        out_(out),
        writer_(Index(graph.size()), kNoNode),
        by_set_(Index(sets.size())) {
    std::vector<bool> written(Index(graph.size()));
    for (NodeId n = 0; n < graph_.size(); ++n) {
      for (const NodeId x : graph_.mutates(n)) {
        for (const NodeId storage : sets_.of(x)) written[Index(storage)] = true;
      }
    }
    sets_with_ = MakeCsr(graph.size(), [&](const auto& pair) {
      for (int32_t set = 0; set < sets_.size(); ++set) {
        for (const NodeId storage : sets_.entries(set)) {
          if (!written[Index(storage)]) continue;
          pair(storage, set);
          by_set_[Index(set)].is_written = true;
        }
      }
    });
  }

  absl::Status Run() {
    for (NodeId n = 0; n < graph_.size(); ++n) {
      for (const NodeId x : graph_.inputs(n)) Use(n, sets_.set(x));
      if (graph_.kind(n) == NodeKind::kWait) EndUses(n);
      for (const NodeId x : graph_.mutates(n)) Write(n, sets_.set(x));
      if (looks_ > kMaxLooks) {
        return absl::ResourceExhaustedError(absl::StrCat(
            graph_.Describe(n), ": more than ", kMaxLooks,
            " looks at storages up to here; in-place ops among so many cannot be planned"));
      }
    }
    for (CollectiveId c = 0; c < static_cast<CollectiveId>(graph_.collectives().size()); ++c) {
      const Collective& collective = graph_.collective(c);
      bool touched = Written(collective.start) || !graph_.mutates(collective.start).empty();
      if (collective.wait != kNoNode) touched = touched || Written(collective.wait);
      for (const NodeId x : graph_.inputs(collective.start)) touched = touched || Written(x);
      if (touched) out_.pinned[Index(c)] = true;
    }
    return absl::OkStatus();
  }

 private:
  struct Set {
    bool is_written = false;      // any of it, somewhere
    bool is_fresh = false;        // whether `writers` are those of now
    std::vector<NodeId> writers;  // the last ones of its storages
    std::vector<NodeId> users;    // ascending
    // Of `users`, what the writer `by` has not come to yet: the last of them first.
    NodeId by = kNoNode;
    size_t left = 0;
  };

  bool Written(NodeId n) const { return by_set_[Index(sets_.set(n))].is_written; }

  // The later of a node's two ends that still stands before `after`.
  void Add(NodeId n, NodeId after) {
    if (n == after) return;
    const NodeId until = EndOfUse(graph_, n);
    if (until != after) out_.edges.push_back({until < after ? until : n, after});
  }

  void Use(NodeId n, int32_t number) {
    Set& set = by_set_[Index(number)];
    if (!set.is_written) return;
    if (!set.is_fresh) FindWriters(number);
    for (const NodeId writer : set.writers) Add(writer, n);
    set.users.push_back(n);
  }

  void FindWriters(int32_t number) {
    Set& set = by_set_[Index(number)];
    set.is_fresh = true;
    set.writers.clear();
    for (const NodeId storage : sets_.entries(number)) {
      if (writer_[Index(storage)] != kNoNode) set.writers.push_back(writer_[Index(storage)]);
    }
    std::sort(set.writers.begin(), set.writers.end());
    set.writers.erase(std::unique(set.writers.begin(), set.writers.end()), set.writers.end());
    looks_ += static_cast<int64_t>(sets_.entries(number).size());
  }

  // Whoever wrote since the start has forgotten it; who writes from now on stays behind the wait.
  void EndUses(NodeId wait) {
    const NodeId start = graph_.collective(graph_.collective_of(wait)).start;
    for (const NodeId x : graph_.inputs(start)) {
      Set& set = by_set_[Index(sets_.set(x))];
      if (set.is_written) set.users.push_back(wait);
    }
  }

  void Write(NodeId n, int32_t number) {
    if (!by_set_[Index(number)].is_fresh) FindWriters(number);
    for (const NodeId writer : by_set_[Index(number)].writers) Add(writer, n);
    for (const NodeId storage : sets_.entries(number)) {
      const absl::Span<const int32_t> with = sets_with_.of(storage);
      looks_ += static_cast<int64_t>(with.size());
      for (const int32_t s : with) AddUsers(by_set_[Index(s)], writer_[Index(storage)], n);
      writer_[Index(storage)] = n;
    }
  }

  // Those who used the set behind `since`.
  void AddUsers(Set& set, NodeId since, NodeId n) {
    set.is_fresh = false;
    if (std::exchange(set.by, n) != n) set.left = set.users.size();
    for (; set.left > 0 && set.users[set.left - 1] > since; --set.left, ++looks_) {
      Add(set.users[set.left - 1], n);
    }
  }

  const Graph& graph_;
  const StorageSets& sets_;
  Constraints& out_;
  std::vector<NodeId> writer_;  // by storage
  std::vector<Set> by_set_;
  Csr sets_with_;  // by storage, of those that are written
  int64_t looks_ = 0;
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
    RETURN_IF_ERROR(StorageWalk(graph, sets, out).Run());
  }
  std::sort(out.edges.begin(), out.edges.end(),
            [](const Constraints::Edge& a, const Constraints::Edge& b) {
              return std::tie(a.after, a.before) < std::tie(b.after, b.before);
            });
  out.edges.erase(std::unique(out.edges.begin(), out.edges.end()), out.edges.end());
  return out;
}

}  // namespace bucketd
