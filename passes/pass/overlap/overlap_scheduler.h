// Orders a step so that compute hides communication. One run, on flat arrays.
//
// Ready steps wait in two queues: those that some compute node needs, nearest compute node first,
// and the others. Whatever takes time opens a window of that length on every process group; first
// what is in flight is hidden in it, then launches that nothing scheduled so far needs are started
// before it. Internal to the scheduler.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "passes/base/csr.h"
#include "passes/base/number_set.h"
#include "passes/pass/overlap/overlap_graph.h"
#include "passes/pass/overlap/overlap_memory.h"
#include "passes/pass/overlap/overlap_queues.h"

namespace bucketd::overlap {

// What changes from run to run, beside the options.
struct Limits {
  bool prefetch = true;
  int64_t allowed_bytes = 0;  // by the tracker; PrefetchBudget::kUnlimited
  int64_t max_off_path_bytes = 0;
};

struct Schedule {
  std::vector<Position> order;
  std::vector<int64_t> exposed_ps;               // one a launch
  std::vector<std::vector<Position>> hidden_by;  // one a launch, each as scheduled
  int64_t wasted_ps = 0;                         // of windows, what hid nothing
  int64_t peak_bytes = 0;                        // by the tracker
};

class OverlapScheduler {
 public:
  // The arguments outlive it.
  OverlapScheduler(const OverlapGraph& steps, const StorageUses& uses,
                   const MemoryBaseline& baseline, const PlanOptions& options,
                   const OverlapPolicy& policy, const Limits& limits);

  // Once. Every step is scheduled, in a legal order. O(nodes log nodes + edges + windows *
  // (max_collective_distance + launches / 4096)), where a window is a step that takes time; looking
  // for what a launch needs is bounded in all, and so are candidates beyond a few hundred a window.
  Schedule Run() &&;

 private:
  // Time that a step leaves on every process group but one.
  class Window {
   public:
    Window(int64_t ps, int32_t excluded, int32_t groups)
        : ps_(ps), excluded_(excluded), groups_(groups - (excluded >= 0 ? 1 : 0)) {}
    int64_t left(int32_t group) const;
    void Take(int32_t group, int64_t ps);
    bool any_left() const;
    int64_t least() const;  // of all groups; 0 if there is none
    bool full() const { return taken_.size() >= kMaxGroups; }

   private:
    static constexpr size_t kMaxGroups = 64;
    int64_t ps_;
    int32_t excluded_, groups_;
    std::vector<std::pair<int32_t, int64_t>> taken_;  // groups and what is left of them
  };
  struct InFlight {
    std::deque<int32_t> all, exposed;  // launches, oldest first; completed ones go lazily
  };
  // Smaller goes first.
  struct Rank {
    uint64_t urgency = 0;  // class, then first compute node
    int64_t hides = 0;     // negative
    Position start = 0;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  struct Candidate {
    Rank rank;
    int32_t launch = -1, key = 0;
    bool blocked = false;
  };

  const LaunchSpan& launch(int32_t l) const { return steps_.launches()[Index(l)]; }
  bool scheduled(Position v) const { return scheduled_[Index(v)]; }
  bool flying(int32_t l) const { return flying_[Index(l)]; }

  // overlap_scheduler.cc
  int32_t Distance() const;  // candidates that may be looked at
  std::vector<Position> TakeNext();
  bool TakeOffPath(Position head) const;
  void Handle(Position v);
  void Push(Position v);
  void ScheduleStep(Position v);
  void Start(int32_t l);
  void Complete(int32_t l);
  int32_t Oldest();
  void RunOther(Position v);
  void HideInFlight(Position by, Window& window);
  void Hide(int32_t l, Position by, Window& window);
  bool HiddenBy(int32_t l, Position v) const;
  void NextCompute();

  // overlap_prefetch.cc
  void Prefetch(Position now, Window& window);
  bool MayRunShort(const std::vector<Candidate>& candidates) const;
  void FindCandidates(const Window& window, std::vector<Candidate>& candidates);
  void SortCandidates(std::vector<Candidate>& candidates);
  void TryCandidate(int32_t l, Position now, Window& window);
  bool MakeRoom(int32_t l, Position now);
  bool OverMemory(int32_t l) const;
  bool Blocks(Position v) const;
  bool WaitBlocks(int32_t l, Position now) const;
  bool FindPath(int32_t l, Position now);
  bool Needs(int32_t l, Position now);
  void ScheduleCandidate(int32_t l, Position now, Window& window);
  int32_t OnlyGroup(const Window& window) const;

  const OverlapGraph& steps_;
  const PlanOptions& options_;
  const OverlapPolicy& policy_;
  const Limits limits_;
  MemoryTracker memory_;
  PrefetchBudget budget_;
  ReadyQueues ready_;
  Schedule result_;
  std::vector<int32_t> missing_;  // parents of a step that are not scheduled
  std::vector<bool> scheduled_, flying_;
  std::vector<InFlight> in_flight_;  // one a group
  std::deque<int32_t> oldest_;       // in flight, completed ones go lazily
  std::vector<int32_t> exposed_groups_;
  std::vector<bool> group_listed_;
  std::vector<int32_t> mates_;  // in flight, one a key
  int64_t in_flight_bytes_ = 0;
  int32_t flying_count_ = 0;
  int32_t next_compute_ = 0;
  Position last_on_path_ = -1;
  Position running_ = -1;  // the step whose window is open, also within windows inside it
  int32_t depth_ = 0;

  std::vector<uint64_t> urgency_;  // one a launch: of its rank, as long as its use is not next
  std::vector<Candidate> spare_;   // memory of windows
  // Launches that windows may start: not yet started, near enough.
  NumberSet near_;
  std::vector<NumberSet> near_of_group_;  // empty where there are many groups
  Csr comes_;                             // launches on the path, by first compute node
  std::vector<Position> blocked_by_;      // one a launch: as long as this blocks, it waits
  std::vector<int32_t> seen_;             // one a step: the search that saw it last
  int32_t search_ = 0;
  int64_t search_steps_left_ = 0;
  int64_t search_edges_left_ = 0;
  int64_t looks_left_ = 0;
  std::vector<Position> stack_, path_;
  std::vector<Rank> best_of_key_;
  std::vector<int32_t> best_seen_;
  int32_t round_ = 0;
};

}  // namespace bucketd::overlap
