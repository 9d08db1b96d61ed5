// Local search over the order itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "passes/auto/order_replay.h"
#include "passes/auto/search.h"

namespace bucketd::search {

// The decoder makes orders by rules; what no rule says is out of its reach: a launch, a kernel or a
// copy a little earlier or later, a collective in another bucket, chained or not. This changes an
// order action by action, each change replayed exactly. The search outlives it.
class OrderSearch {
 public:
  // Of the search's problem, from the best orders that it has.
  explicit OrderSearch(Search& search);

  // Goes on, from the search's best order if that is better than its own, until it has replayed so
  // many leaders in all or has an order within the limit that takes no more than `enough_ps`.
  void WorkUntil(int64_t placed, int64_t enough_ps);

 private:
  void Step();
  void BeginCycle();
  int64_t Cutoff() const;
  bool ChangeSome();
  bool Try(int64_t cutoff_ps);
  uint64_t HashOfWishes() const;
  bool Change();
  bool MoveAction();
  bool EaseStall();
  bool MoveMember();
  bool MergeBatches();
  bool SplitBatch();
  bool ChangeForm();
  template <typename F>
  int32_t Pick(F fits);
  int32_t PickBucket();
  int32_t PickPartner(int32_t of);
  void FixForm(int32_t batch);
  bool MayShare(int32_t a, int32_t b) const;
  void MoveTo(size_t from, size_t to, bool with_dependents);
  size_t PlaceOf(Action::Kind kind, int32_t id) const;
  void Erase(int32_t batch);
  bool DependsOnMarked(const Action& action) const;
  size_t Below(size_t bound) { return random_() % bound; }

  Search& search_;
  const Problem& problem_;
  std::mt19937_64 random_;  // the same numbers on any machine
  OrderReplay replay_;
  Decoded at_, candidate_;  // candidate_: what is tried next, as wishes
  Score score_;             // of at_
  Decoded best_;
  Score best_score_;
  int64_t round_ = 0;
  int64_t known_in_cycle_ = 0;
  size_t stale_ = 0;    // cycles that knew most of what they came upon
  int64_t placed_ = 0;  // leaders, in terms of decodes
  const Decoded* tried_ = nullptr;
  Score tried_score_;
  absl::flat_hash_map<uint64_t, Score> known_;  // what orders scored, or at least would, by hash
  std::vector<int32_t> class_of_;  // of a collective: those of a class may share a bucket
  std::vector<uint8_t> marked_;    // leaders
};

}  // namespace bucketd::search
