// From settings to a legal order of the whole step, with its exact time and memory: forward list
// scheduling on the simulator's own clocks.
//
// At every boundary between two kernels the wires that are about to be free get the next bucket: a
// gather that is due, a batch of reductions, or a gather early. The next kernel is the first ready
// one in program order; while that waits for a collective, later ones fill in; weight gradients may
// be held back to fill such gaps. Memory is known exactly at every step, and what is still to come
// is taken from program order's profile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"

#include "passes/auto/launch_cost.h"
#include "passes/auto/least_rows.h"
#include "passes/auto/live_memory.h"
#include "passes/auto/problem.h"
#include "passes/auto/range_max.h"
#include "passes/auto/settings.h"
#include "passes/base/number_set.h"
#include "passes/sim/stream_clock.h"

namespace bucketd::search {

// Buckets decided beforehand: those of one number go together as far as memory lets them.
struct Partition {
  std::vector<int32_t> bucket_of;  // one a collective; -1: inline
  std::vector<Form> form_of;       // one a bucket
  std::vector<int32_t> size_of;    // members of a bucket
};

struct Figures {
  int64_t total_ps = 0, peak_bytes = 0;
  friend bool operator==(const Figures&, const Figures&) = default;
};

// Memory over the cap, where the step stood.
struct Overflow {
  LeaderId at = 0;
  int64_t bytes = 0;
};

// Memory that early gathers leave free while the step stands at leaders first to last - 1.
struct Reserve {
  LeaderId first = 0, last = 0;
  int64_t bytes = 0;
};

// A step of a decoded order.
struct Action {
  enum class Kind : uint8_t { kRun, kLaunch, kWait };
  Kind kind = Kind::kRun;
  int32_t id = 0;  // leader, or batch
  friend bool operator==(const Action&, const Action&) = default;
};

struct Decoded {
  Figures figures;
  std::vector<Action> order;  // every leader that is no start or wait, every batch twice or, where
                              // nobody waits for it, once
  std::vector<Batch> batches;
  bool replayed = false;  // an order that no settings need lead to
};
inline bool IsSameOrder(const Decoded& a, const Decoded& b) {
  return a.order == b.order && a.batches == b.batches;
}

// Keeps its buffers from one decode to the next. Not thread-safe.
class Decoder {
 public:
  explicit Decoder(const Problem& problem);

  // Tries to stay within `memory_cap`; figures tell whether it did. `partition` may be null. The
  // result holds until the next call. O(leaders log leaders).
  //
  // Gives up once the step is sure to take longer than `cutoff_ps`: then figures.total_ps is a
  // lower bound above it, and the order and the memory are those so far.
  const Decoded& Decode(const Settings& settings, int64_t memory_cap, const Partition* partition,
                        int64_t cutoff_ps = kNever, absl::Span<const Reserve> reserves = {});

  // Where the last call was over the cap, in order.
  absl::Span<const Overflow> over() const { return over_; }

  // Leaders that the last call placed before it ended: its cost.
  int64_t placed() const { return placed_; }
  // Groups, and stretches of groups, that it looked at to see what they want.
  int64_t visits() const { return wires_.visits() + ends_.visits() + filled_.visits(); }

 private:
  // What a decode asks about a leader, side by side.
  struct Leader {
    int64_t cost_ps = 0, own_bytes = 0;
    CollectiveId transfer = -1;  // of a start or wait
    int32_t after = 0;           // where the problem's list begins
    uint8_t is = 0;              // kStart ...; 0: part of the main chain
  };
  enum : uint8_t { kStart = 1, kWait = 2, kLeaf = 4, kPost = 8, kRootWork = 16 };
  struct Launched {
    int64_t end_ps = 0;
    bool waited = false;
    LaunchCost cost;
  };
  // Ids in order of arrival, taken from the front.
  struct Queue {
    std::vector<int32_t> ids;
    size_t head = 0;
    size_t size() const { return ids.size() - head; }
    bool empty() const { return head == ids.size(); }
    int32_t front() const { return ids[head]; }
    void Clear() {
      ids.clear();
      head = 0;
    }
  };

  // What a leader of the main chain waits for, as far as it has been looked through.
  struct Stalls {
    using Stall = std::tuple<int64_t, size_t, int32_t>;  // end, place among its inputs, batch
    LeaderId of = -1;
    size_t seen = 0;  // of its inputs; those before are done or under way
    std::priority_queue<Stall, std::vector<Stall>, std::greater<>> by_end;
    int32_t first() const { return std::get<2>(by_end.top()); }
  };

  // decoder.cc: the clock and the main loop.
  void Reset(const Settings& settings, int64_t memory_cap, const Partition* partition);
  void ResetRoots();
  void RunAll();
  void RunTail();
  void RunNext(LeaderId next);
  void Unblock();
  bool Fill();
  LeaderId TakeFiller();
  bool TryDefer(LeaderId next);
  bool HasRoomFor(int64_t deferred_ps) const;
  bool MayHold(int64_t bytes);
  LeaderId TakeDeferred();
  void AdvanceMain();
  LeaderId NextReady();
  void Emit(LeaderId l);
  void Take(LeaderId l);
  void Force(LeaderId l);
  void BecomeReady(LeaderId l);
  void Finish(LeaderId l);
  bool GivenUp() const { return sure_ps_ > cutoff_ps_; }

  // decoder_launch.cc: what goes onto the wires, and when.
  void Boundary(int64_t next_ps);
  void TakeEnded();
  size_t NextWire(size_t from, int64_t next_ps);
  void FeedWire(GroupId group, int64_t next_ps);
  void NoteRoots(GroupId group);
  int64_t PendingOf(int32_t key) const;
  int64_t PendingThatGoes() const;
  void NotePending(GroupId group, int32_t key);
  void NoteEnd(size_t q);
  int32_t NextRootKey(GroupId group);
  bool IsDue(int32_t root, int32_t sink, int64_t free_ps, int64_t next_ps);
  CollectiveId HeadRoot(int32_t key);
  bool LaunchRoots(int32_t key, bool force);
  std::vector<CollectiveId> FixedMembers(CollectiveId head, size_t next);
  std::vector<CollectiveId> MembersInTime(CollectiveId head, size_t next);
  bool LaunchSinks(int32_t key, bool flush);
  bool LaunchFixedSinks(int32_t key, bool flush);
  bool FixedBucketFits(CollectiveId head, size_t from);
  void ChooseForm(Batch& batch);
  bool IsCheaper(const LaunchCost& a, const LaunchCost& b);
  bool BuffersFit(const Batch& batch);
  void Launch(std::vector<CollectiveId> members);
  void Wait(int32_t batch);
  int32_t EarliestOutstanding(bool sinks_only);

  // decoder_memory.cc
  void NoteLive(int64_t most_bytes);
  LeaderId Reached();
  LeaderId Position();
  int64_t Extra();
  bool FitsNow(int64_t bytes);
  bool FitsUntil(LeaderId start, int64_t bytes, int64_t extra);
  bool RootFits(CollectiveId c, int64_t extra, int64_t taken);
  bool TightMemory() const;
  void AddGathered(CollectiveId c);
  void DropGathered();
  void MakeRoom(int64_t bytes);

  int64_t Remaining() const { return problem_.total_ps() - problem_.ideal_ps[Index(main_)]; }

  const Problem& problem_;
  std::vector<Leader> leaders_;  // and one behind the last
  // As every decode begins.
  std::vector<int32_t> fresh_missing_;
  std::vector<int64_t> wire_ps_;  // one a group: of all collectives

  Settings settings_;
  int64_t cap_ = 0;
  const Partition* partition_ = nullptr;
  int64_t cutoff_ps_ = kNever;
  Decoded out_;
  int64_t placed_ = 0;
  int64_t sure_ps_ = 0;  // no order that begins like this one ends earlier

  // Clocks.
  internal::StreamClock clock_;
  int64_t compute_left_ps_ = 0;     // of leaders not placed
  std::vector<int64_t> wire_left_;  // one a group: of collectives not launched

  // Leaders.
  std::vector<int32_t> missing_;  // inputs that are not there
  std::vector<uint8_t> done_;
  // Kernels that could run: those of which a root is computed go with it, or fill waits.
  NumberSet ready_, post_, root_work_;
  Queue deferred_;
  int64_t deferred_ps_ = 0;
  bool deferred_sorted_ = false;
  LeaderId main_ = 0;  // first leader of the main chain that is not done
  LeaderId left_ = 0;  // behind the main chain's end: first kernel that is not done
  std::vector<std::pair<LeaderId, size_t>> stack_;  // and how far it has been looked through
  Stalls stalls_;

  // Collectives.
  std::vector<int32_t> batch_of_;
  std::vector<Launched> launched_;  // one a batch
  std::vector<Queue> outstanding_;  // two a group: batches to wait for, of reductions the second
  LeastRows<2> ends_;               // one a group: of the first of both, or a bit earlier
  std::vector<CollectiveId> inline_ready_;
  std::vector<size_t> root_head_;      // one a key
  std::vector<int64_t> latest_start_;  // one a collective, of roots
  std::vector<Queue> pending_;         // one a key: sinks that may be launched
  std::vector<int64_t> pending_ps_;
  std::vector<int32_t> arriving_;  // of a partition's bucket: members that are not pending
                                   // yet
  std::vector<int32_t> complete_;  // one a key: such buckets all of whose members are
  LeastRows<1> filled_;            // one a key: 0 if something is pending
  // One a group, what its wire could take: when it is free; of the root that is next when that must
  // begin, where program order starts it and its bytes; of what is pending the opposite of the most
  // that a key has, wire time, or with a partition complete buckets. kNever: nothing.
  enum : size_t { kFree, kLatest, kRootStart, kRootBytes, kPending, kOfWire };
  LeastRows<kOfWire> wires_;

  // Memory.
  LiveMemory memory_;
  std::vector<Overflow> over_;
  RangeMax profile_;  // program order's, and gathers that wait for their use
  int64_t gathered_bytes_ = 0;
  int64_t pending_bytes_ = 0;  // launch bytes of what is pending
  using Gathered = std::pair<LeaderId, CollectiveId>;
  std::priority_queue<Gathered, std::vector<Gathered>, std::greater<>> gathered_;  // by start
};

}  // namespace bucketd::search
