// The exact time and memory of an explicit order.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "passes/auto/decoder.h"
#include "passes/auto/live_memory.h"
#include "passes/auto/problem.h"
#include "passes/sim/stream_clock.h"

namespace bucketd::search {

// An order of actions need not be legal: what an action still needs is put right before it. Only
// two launches that need one another make an order impossible. Waits that cost nothing are placed
// anew, where their collective has ended, where its result is needed, or where memory wants them;
// waits with a copy behind them, and those kept in program order, stay where the order has them.
// Not thread-safe; the problem outlives it.
class OrderReplay {
 public:
  OrderReplay(const Problem& problem, int64_t limit);

  // The order as it came out, with its figures; null if there is none. Gives up as the decoder
  // does: once the step is sure to take longer than `cutoff_ps`, figures.total_ps is a lower bound
  // above that and the order a part. Holds until the next call. O(leaders + edges +
  // batches log batches).
  const Decoded* Run(const Decoded& wishes, int64_t cutoff_ps);

  // The order with every wait as late as its result's use and memory allow, because a wait that
  // stands where its collective ends at nominal costs stops compute if the wire is slower. The
  // order itself if that would take longer, or more memory than it and the limit. Holds until the
  // next call.
  const Decoded& Late(const Decoded& order);

  // Of the wait of a batch: whether it stands where the order has it.
  bool HasPlace(const Batch& batch) const;

  // Leaders that the last call placed: its cost.
  int64_t placed() const { return placed_; }

 private:
  struct Launched {
    int64_t end_ps = 0;
    bool launched = false, waited = false, has_place = false;
    LaunchCost cost;
  };
  // A batch whose wait has no place; in order of ends, then of launches.
  struct Outstanding {
    int64_t end_ps = 0;
    size_t place = 0;  // of its launch
    int32_t batch = 0;
    friend auto operator<=>(const Outstanding&, const Outstanding&) = default;
  };
  const Decoded* Replay(const Decoded& wishes, int64_t limit, int64_t cutoff_ps, bool late);
  void Reset(const Decoded& wishes);
  bool Take(const Action& action);
  bool Place(LeaderId leader);
  void Open(LeaderId leader);
  bool PlaceInputs(LeaderId leader);
  bool PlaceInput(LeaderId input);
  bool Launch(int32_t batch);
  bool Await(int32_t batch);
  void Wait(int32_t batch);
  void Emit(LeaderId leader);
  const Outstanding* FirstToEnd();
  void TakeEnded();
  void MakeRoom(int64_t bytes);
  void RunPutOff(LeaderId done);
  bool IsReady(LeaderId leader) const;
  bool TakeRest();

  const Problem& problem_;
  const int64_t most_bytes_;  // of every call
  int64_t limit_ = 0;         // of this one
  bool late_ = false;         // waits stand only where they are needed
  Decoded out_;
  internal::StreamClock clock_;
  LiveMemory memory_;
  std::vector<uint8_t> state_;                      // of a leader
  std::vector<std::pair<LeaderId, size_t>> stack_;  // and how far it has been looked through
  std::vector<Launched> launch_;                    // of a batch
  std::vector<int32_t> batch_of_;
  std::priority_queue<Outstanding, std::vector<Outstanding>, std::greater<>> outstanding_;
  std::vector<std::pair<size_t, int32_t>> ended_;  // places and batches
  int64_t compute_left_ps_ = 0, sure_ps_ = 0, cutoff_ps_ = 0;
  std::vector<int64_t> wire_left_;
  int64_t placed_ = 0;
};

}  // namespace bucketd::search
