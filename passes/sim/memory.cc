#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/plan/storage.h"
#include "passes/sim/model.h"

namespace bucketd::internal {
namespace {

using SetId = Storages::SetId;

// Walks the order twice: first who stands on what and when it is last used, then the sum of what is
// live. A moment is one kernel; a bucket's start and wait are up to two.
class Memory {
 public:
  Memory(const Graph& graph, const Plan& plan, const std::vector<BucketCosts>& buckets)
      : graph_(graph),
        plan_(plan),
        buckets_(buckets),
        storages_(graph),
        bucket_sets_(plan.buckets.size()) {
    last_use_.reserve(Index(graph.size()));
  }

  void Run(bool with_timeline, Simulation& result) {
    FindWaits();
    for (const Step& step : plan_.order) {
      if (step.kind == Step::Kind::kNode) RunNode(step.id);
      if (step.kind == Step::Kind::kStart) StartBucket(step.id);
      if (step.kind == Step::Kind::kWait) WaitBucket(step.id);
    }
    CloseLastUses();
    Sum(with_timeline, result);
  }

 private:
  struct Moment {
    int64_t allocated = 0, freed = 0;
  };
  // What a bucket's start leaves for its wait.
  struct BucketSets {
    SetId result = Storages::kNone;     // all that the start's node stands on
    SetId first_own = Storages::kNone;  // its own storages: one a member, or one flat buffer
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

  void Allocate(int64_t bytes) {
    moments_.back().allocated += bytes;
    scratch_.push_back(storages_.Make(bytes));
  }

  void Use(SetId set, int64_t moment) {
    if (set == Storages::kNone) return;
    if (Index(set) >= last_use_.size()) last_use_.resize(Index(storages_.size()), -1);
    last_use_[Index(set)] = std::max(last_use_[Index(set)], moment);
  }

  void RunNode(NodeId n) {
    NextMoment();
    storages_.Add(n);
    const NodeKind kind = graph_.kind(n);
    // Inputs are there before the first node, whatever their place.
    (kind == NodeKind::kPlaceholder ? before_ : moments_.back().allocated) +=
        storages_.own_bytes(n);
    int64_t until = Now();
    if (kind == NodeKind::kCollective) {
      until = std::max(until, wait_moment_[Index(graph_.collective_of(n))]);
    }
    if (kind == NodeKind::kOutput) until = kForever;
    Use(storages_.of(n), until);
    if (kind == NodeKind::kGetitem) return;  // touches its piece alone
    for (const NodeId x : graph_.inputs(n)) Use(storages_.of(x), until);
  }

  void UseInputs(const Bucket& bucket, int64_t moment) {
    for (const NodeId member : bucket.members) {
      for (const NodeId x : graph_.inputs(member)) Use(storages_.of(x), moment);
    }
  }

  // One storage a member, with consecutive ids.
  void AllocateResults(const Bucket& bucket) {
    for (const NodeId member : bucket.members) Allocate(graph_.outputs(member)[0].bytes);
  }

  void StartBucket(BucketId k) {
    const Bucket& bucket = plan_.buckets[Index(k)];
    const BucketCosts& b = buckets_[Index(k)];
    BucketSets& sets = bucket_sets_[Index(k)];
    scratch_.clear();
    NextMoment();
    if (b.copies_on_compute) {
      UseInputs(bucket, Now());
      Allocate(Gathers(b.kind) ? b.out_bytes : b.in_bytes);
      const SetId packed = scratch_.front();
      NextMoment();
      Use(packed, sets.wait_moment);
      if (Scatters(b.kind)) {
        scratch_.clear();
        Allocate(b.out_bytes);
      }
    } else {
      UseInputs(bucket, sets.wait_moment);
      AllocateInSlot(bucket, b);
    }
    sets.first_own = scratch_.front();
    sets.result = storages_.Union(scratch_);
    Use(sets.result, sets.wait_moment);
  }

  // Grouped, or copies inside the collective's slot: results and flat buffers live side by side.
  void AllocateInSlot(const Bucket& bucket, const BucketCosts& b) {
    if (!b.copies_on_comm || Gathers(b.kind)) {
      AllocateResults(bucket);
      if (b.copies_on_comm) Allocate(b.out_bytes);
    } else {
      if (Scatters(b.kind)) Allocate(b.out_bytes);
      Allocate(b.in_bytes);
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
      AllocateResults(bucket);
      first = scratch_.front();
      one_each = true;
    }
    for (const NodeId member : bucket.members) {
      const NodeId wait = graph_.collective(graph_.collective_of(member)).wait;
      storages_.Put(wait, first);
      Use(first, Now());
      if (one_each) ++first;
    }
  }

  // A use of a set is a use of whatever it is made of; parts are older than wholes.
  void CloseLastUses() {
    last_use_.resize(Index(storages_.size()), -1);
    for (SetId set = storages_.size(); set-- > 0;) {
      const int64_t last = last_use_[Index(set)];
      for (const SetId part : storages_.parts(set)) Use(part, last);
      if (last >= 0 && last != kForever) {
        moments_[static_cast<size_t>(last)].freed += storages_.bytes(set);
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
  Storages storages_;  // of a bucketed wait: its piece
  std::vector<BucketSets> bucket_sets_;
  std::vector<int64_t> wait_moment_;  // one a collective, -1 if none
  std::vector<int64_t> last_use_;     // one a set
  std::vector<SetId> scratch_;        // what was allocated of a bucket
  int64_t before_ = 0;
};

}  // namespace

void RunMemory(const Graph& graph, const Plan& plan, const std::vector<BucketCosts>& buckets,
               bool with_timeline, Simulation& result) {
  Memory(graph, plan, buckets).Run(with_timeline, result);
}

}  // namespace bucketd::internal
