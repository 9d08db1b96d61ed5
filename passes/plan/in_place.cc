#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/plan/placement.h"
#include "passes/plan/storage.h"

namespace bucketd::internal {
namespace {

// Uses of storages beyond which a graph is not verified: a bound on time for hostile input.
constexpr int64_t kMaxUses = 200'000'000;

// Walks the graph in program order and keeps, for every storage, the latest place among those whose
// side matters to whoever comes next. A pairwise comparison would be quadratic in the users.
class InPlaceCheck {
 public:
  InPlaceCheck(const Graph& graph, const Placement& placement, StorageSets sets,
               Violations& violations)
      : graph_(graph),
        placement_(placement),
        sets_(std::move(sets)),
        violations_(violations),
        done_(static_cast<size_t>(graph.size()), kNoNode),
        begun_(done_),
        written_(done_) {}

  absl::Status Run() {
    for (NodeId n = 0; n < graph_.size(); ++n) {
      CheckUses(n);
      CheckWrites(n);
      Record(n);
      if (uses_ > kMaxUses) {
        return absl::ResourceExhaustedError(absl::StrCat(
            graph_.Describe(n), ": more than ", kMaxUses,
            " uses of storages up to here; in-place ops among so many cannot be verified"));
      }
    }
    return absl::OkStatus();
  }

 private:
  // For every storage that one of `nodes` stands on.
  template <typename F>
  void ForStorages(absl::Span<const NodeId> nodes, F f) {
    for (const NodeId x : nodes) {
      uses_ += static_cast<int64_t>(sets_.of(x).size());
      for (const NodeId storage : sets_.of(x)) f(static_cast<size_t>(storage));
    }
  }

  int64_t Place(NodeId n) const { return n == kNoNode ? kNowhere : placement_.place(n); }

  void KeepLatest(NodeId& kept, NodeId n) const {
    if (Place(n) > Place(kept)) kept = n;
  }

  void Complain(NodeId writer, NodeId user) {
    violations_.Add(absl::StrCat("in place: ", graph_.Describe(writer),
                                 " writes in place and changed sides with ", graph_.Describe(user),
                                 ", which uses the same storage"));
  }

  void CheckUses(NodeId n) {
    ForStorages(graph_.inputs(n), [&](size_t storage) {
      const NodeId wrote = written_[storage];
      if (wrote != kNoNode && Place(n) < Place(EndOfUse(graph_, wrote))) Complain(wrote, n);
    });
  }

  void CheckWrites(NodeId n) {
    ForStorages(graph_.mutates(n), [&](size_t storage) {
      if (Place(done_[storage]) > Place(n)) {
        Complain(n, done_[storage]);
      } else if (Place(begun_[storage]) > Place(n)) {
        Complain(n, begun_[storage]);
      }
    });
  }

  void Record(NodeId n) {
    std::vector<NodeId>& users = EndOfUse(graph_, n) == n ? done_ : begun_;
    ForStorages(graph_.inputs(n), [&](size_t storage) { KeepLatest(users[storage], n); });
    if (graph_.kind(n) == NodeKind::kWait) {
      const NodeId start = graph_.collective(graph_.collective_of(n)).start;
      ForStorages(graph_.inputs(start), [&](size_t storage) { KeepLatest(done_[storage], n); });
    }
    ForStorages(graph_.mutates(n), [&](size_t storage) {
      NodeId& kept = written_[storage];
      if (kept == kNoNode || Place(EndOfUse(graph_, n)) > Place(EndOfUse(graph_, kept))) kept = n;
    });
  }

  const Graph& graph_;
  const Placement& placement_;
  const StorageSets sets_;
  Violations& violations_;
  // Latest by place, one a storage: users that are done (a collective's wait), collectives that
  // have begun, ops that wrote.
  std::vector<NodeId> done_, begun_, written_;
  int64_t uses_ = 0;
};

}  // namespace

absl::Status CheckInPlace(const Graph& graph, const Placement& placement, Violations& violations) {
  if (!graph.has_mutation()) return absl::OkStatus();
  ASSIGN_OR_RETURN(StorageSets sets, StorageSets::Of(graph));
  return InPlaceCheck(graph, placement, std::move(sets), violations).Run();
}

}  // namespace bucketd::internal
