#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/sim/model.h"

namespace bucketd::internal {
namespace {

// Sets of storages that nodes stand on, as a DAG: a set is one storage or a union of earlier sets.
// Unions are never written out, so a long chain of aliases costs its edges, not their product.
using SetId = int32_t;
constexpr SetId kEmpty = -1;

// Walks the order twice: first who stands on what and when it is last used, then the sum of what is
// live. A moment is one kernel; a bucket's start and wait are up to two.
class Memory {
 public:
  Memory(const Graph& graph, const Plan& plan, const std::vector<BucketCosts>& buckets)
      : graph_(graph),
        plan_(plan),
        buckets_(buckets),
        set_of_(static_cast<size_t>(graph.size()), kEmpty),
        first_own_(set_of_),
        own_count_(static_cast<size_t>(graph.size()), 0),
        bucket_sets_(plan.buckets.size()) {}

  void Run(bool with_timeline, Simulation& result) {
    FindWaits();
    for (const Step& step : plan_.order) {
      Visit(step, *this);
    }
    CloseLastUses();
    Sum(with_timeline, result);
  }

 private:
  friend void internal::Visit<>(const Step& step, Memory& walk);
  using Ids = absl::Span<const NodeId>;
  struct Moment {
    int64_t allocated = 0, freed = 0;
  };
  // What a bucket's start leaves for its wait.
  struct BucketSets {
    SetId result = kEmpty;     // all that the start's node stands on
    SetId first_own = kEmpty;  // its own storages: one a member, or one flat buffer
    int64_t wait_moment = 0;
  };

  int64_t Now() const { return static_cast<int64_t>(moments_.size()) - 1; }
  void NextMoment() { moments_.emplace_back(); }

  int64_t StartMoments(BucketId k) const { return buckets_[Index(k)].copies_on_compute ? 2 : 1; }
  int64_t WaitMoments(BucketId k) const {
    const BucketCosts& b = buckets_[Index(k)];
    return b.copies_on_compute && Gathers(b.kind) ? 2 : 1;
  }

  // A collective uses its input until its wait, which stands later in the order.
  void FindWaits() {
    wait_moment_.assign(graph_.collectives().size(), -1);
    int64_t moment = 0;
    for (const Step& step : plan_.order) {
      if (step.kind == Step::Kind::kStart) {
        moment += StartMoments(step.id);
      } else if (step.kind == Step::Kind::kWait) {
        bucket_sets_[Index(step.id)].wait_moment = moment;
        moment += WaitMoments(step.id);
      } else {
        if (graph_.kind(step.id) == NodeKind::kWait) {
          wait_moment_[Index(graph_.collective_of(step.id))] = moment;
        }
        ++moment;
      }
    }
    moments_.reserve(static_cast<size_t>(moment));
  }

  SetId NewStorage(int64_t bytes, int64_t allocated_now) {
    storage_bytes_.push_back(bytes);
    last_use_.push_back(-1);
    child_begin_.push_back(static_cast<int64_t>(children_.size()));
    moments_.back().allocated += allocated_now;
    return static_cast<SetId>(storage_bytes_.size()) - 1;
  }

  // REQUIRES: every child exists. A union of nothing is empty, of one set that set.
  SetId Union(const std::vector<SetId>& sets) {
    if (sets.empty()) return kEmpty;
    if (sets.size() == 1) return sets.front();
    storage_bytes_.push_back(0);
    last_use_.push_back(-1);
    child_begin_.push_back(static_cast<int64_t>(children_.size()));
    children_.insert(children_.end(), sets.begin(), sets.end());
    return static_cast<SetId>(storage_bytes_.size()) - 1;
  }

  void Use(SetId set, int64_t moment) {
    if (set != kEmpty) last_use_[Index(set)] = std::max(last_use_[Index(set)], moment);
  }

  void AppendSetsOf(Ids nodes, std::vector<SetId>& sets) const {
    for (const NodeId x : nodes) {
      if (set_of_[Index(x)] != kEmpty) sets.push_back(set_of_[Index(x)]);
    }
  }

  // Parameters and buffers live beside the step.
  bool Counts(NodeId n) const {
    return graph_.role(n) != Role::kParameter && graph_.role(n) != Role::kBuffer;
  }

  void AllocateOutputs(NodeId n, std::vector<SetId>& sets) {
    const bool placeholder = graph_.kind(n) == NodeKind::kPlaceholder;
    for (const TensorType& t : graph_.outputs(n)) {
      const int64_t bytes = placeholder && !Counts(n) ? 0 : t.bytes;
      // Inputs are there before the first node, whatever their place.
      if (placeholder) before_ += bytes;
      const SetId storage = NewStorage(bytes, placeholder ? 0 : bytes);
      if (own_count_[Index(n)]++ == 0) first_own_[Index(n)] = storage;
      sets.push_back(storage);
    }
  }

  SetId SetOfGetitem(NodeId n) const {
    NodeId source = graph_.inputs(n).front();
    if (own_count_[Index(source)] == 0 && !graph_.alias_of(n).empty()) {
      source = graph_.alias_of(n).front();
    }
    const int32_t index = graph_.getitem_index(n);
    if (index < own_count_[Index(source)]) return first_own_[Index(source)] + index;
    return set_of_[Index(source)];
  }

  void RunNode(NodeId n) {
    NextMoment();
    scratch_.clear();
    if (graph_.kind(n) == NodeKind::kGetitem) {
      set_of_[Index(n)] = SetOfGetitem(n);
      Use(set_of_[Index(n)], Now());
      return;
    }
    const bool collective = graph_.kind(n) == NodeKind::kCollective;
    AppendSetsOf(graph_.alias_of(n), scratch_);
    if (graph_.alias_of(n).empty() || collective) AllocateOutputs(n, scratch_);
    set_of_[Index(n)] = Union(scratch_);
    int64_t until = Now();
    if (collective) until = std::max(until, wait_moment_[Index(graph_.collective_of(n))]);
    if (graph_.kind(n) == NodeKind::kOutput) until = kForever;
    for (const NodeId x : graph_.inputs(n)) Use(set_of_[Index(x)], until);
    Use(set_of_[Index(n)], until);
  }

  void UseInputs(const Bucket& bucket, int64_t moment) {
    for (const NodeId member : bucket.members) {
      for (const NodeId x : graph_.inputs(member)) Use(set_of_[Index(x)], moment);
    }
  }

  // One storage a member, with consecutive ids.
  void AllocateResults(const Bucket& bucket, std::vector<SetId>& sets) {
    for (const NodeId member : bucket.members) {
      const int64_t bytes = FirstOutputBytes(graph_, member);
      sets.push_back(NewStorage(bytes, bytes));
    }
  }

  void AllocateFlat(int64_t bytes, std::vector<SetId>& sets) {
    sets.push_back(NewStorage(bytes, bytes));
  }

  void StartBucket(BucketId k) {
    const Bucket& bucket = plan_.buckets[Index(k)];
    const BucketCosts& b = buckets_[Index(k)];
    BucketSets& sets = bucket_sets_[Index(k)];
    scratch_.clear();
    NextMoment();
    if (b.copies_on_compute) {
      UseInputs(bucket, Now());
      AllocateFlat(Gathers(b.kind) ? b.out_bytes : b.in_bytes, scratch_);
      const SetId packed = scratch_.front();
      NextMoment();
      Use(packed, sets.wait_moment);
      if (Scatters(b.kind)) {
        scratch_.clear();
        AllocateFlat(b.out_bytes, scratch_);
      }
    } else {
      UseInputs(bucket, sets.wait_moment);
      AllocateInSlot(bucket, b);
    }
    sets.first_own = scratch_.front();
    sets.result = Union(scratch_);
    Use(sets.result, sets.wait_moment);
  }

  // Grouped, or copies inside the collective's slot: results and flat buffers live side by side.
  void AllocateInSlot(const Bucket& bucket, const BucketCosts& b) {
    if (!b.copies_on_comm || Gathers(b.kind)) {
      AllocateResults(bucket, scratch_);
      if (b.copies_on_comm) AllocateFlat(b.out_bytes, scratch_);
    } else if (Scatters(b.kind)) {
      AllocateFlat(b.out_bytes, scratch_);
      AllocateFlat(b.in_bytes, scratch_);
    } else {
      AllocateFlat(b.in_bytes, scratch_);
    }
  }

  void WaitBucket(BucketId k) {
    const Bucket& bucket = plan_.buckets[Index(k)];
    const BucketCosts& b = buckets_[Index(k)];
    const BucketSets& sets = bucket_sets_[Index(k)];
    NextMoment();
    bool one_each = !b.copies_on_compute;
    SetId first = sets.first_own;
    if (b.copies_on_comm && !Gathers(b.kind)) one_each = false;
    if (b.copies_on_compute && Gathers(b.kind)) {
      NextMoment();
      Use(sets.result, Now());
      scratch_.clear();
      AllocateResults(bucket, scratch_);
      first = scratch_.front();
      one_each = true;
    }
    for (const NodeId member : bucket.members) {
      const NodeId wait = graph_.collective(graph_.collective_of(member)).wait;
      set_of_[Index(wait)] = first;
      Use(first, Now());
      if (one_each) ++first;
    }
  }

  // A use of a set is a use of whatever it is made of; parts are older than wholes.
  void CloseLastUses() {
    child_begin_.push_back(static_cast<int64_t>(children_.size()));
    for (size_t set = storage_bytes_.size(); set-- > 0;) {
      const int64_t last = last_use_[set];
      for (int64_t i = child_begin_[set]; i < child_begin_[set + 1]; ++i) {
        Use(children_[static_cast<size_t>(i)], last);
      }
      if (last >= 0 && last != kForever) {
        moments_[static_cast<size_t>(last)].freed += storage_bytes_[set];
      }
    }
  }

  void Sum(bool with_timeline, Simulation& result) const {
    int64_t live = before_;
    int64_t peak = live;
    Step peak_step;
    int64_t peak_part = -1;
    size_t moment = 0;
    for (const Step& step : plan_.order) {
      int64_t parts = 1;
      if (step.kind == Step::Kind::kStart) parts = StartMoments(step.id);
      if (step.kind == Step::Kind::kWait) parts = WaitMoments(step.id);
      for (int64_t part = 0; part < parts; ++part, ++moment) {
        live += moments_[moment].allocated;
        if (live > peak) {
          peak = live;
          peak_step = step;
          peak_part = part;
        }
        live -= moments_[moment].freed;
      }
      if (with_timeline) result.live_bytes.push_back(live);
    }
    result.prediction.peak_bytes = peak;
    result.prediction.peak_at = kNoNode;
    if (peak_part < 0) return;
    result.peak_at = Label(peak_step, peak_part);
    if (peak_step.kind == Step::Kind::kNode) result.prediction.peak_at = peak_step.id;
  }

  std::string Label(const Step& step, int64_t part) const {
    if (step.kind == Step::Kind::kNode) {
      const absl::string_view name = graph_.node_name(step.id);
      return name.empty() ? graph_.Describe(step.id) : std::string(name);
    }
    if (step.kind == Step::Kind::kWait)
      return absl::StrCat("b", step.id, part == 1 ? ".copy_out" : ".wait");
    const bool copy_in = part == 0 && StartMoments(step.id) == 2;
    return absl::StrCat("b", step.id, copy_in ? ".copy_in" : ".start");
  }

  // Of an output of the graph: nothing frees it.
  static constexpr int64_t kForever = int64_t{1} << 60;

  const Graph& graph_;
  const Plan& plan_;
  const std::vector<BucketCosts>& buckets_;
  std::vector<Moment> moments_;
  std::vector<SetId> set_of_;     // one a node; of a bucketed wait: its piece
  std::vector<SetId> first_own_;  // storages that a node made: own_count_ ids from here
  std::vector<int32_t> own_count_;
  std::vector<BucketSets> bucket_sets_;
  std::vector<int64_t> wait_moment_;    // one a collective, -1 if none
  std::vector<int64_t> storage_bytes_;  // one a set; 0 for unions
  std::vector<int64_t> last_use_;       // one a set
  std::vector<int64_t> child_begin_;
  std::vector<SetId> children_;
  std::vector<SetId> scratch_;
  int64_t before_ = 0;
};

}  // namespace

void RunMemory(const Graph& graph, const Plan& plan, const std::vector<BucketCosts>& buckets,
               bool with_timeline, Simulation& result) {
  Memory(graph, plan, buckets).Run(with_timeline, result);
}

}  // namespace bucketd::internal
