// The outer search of mode auto: settings of the decoder, then the partition into buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "passes/auto/decoder.h"
#include "passes/auto/order_replay.h"
#include "passes/auto/problem.h"
#include "passes/auto/robustness.h"
#include "passes/auto/settings.h"
#include "passes/auto/tuning.h"

namespace bucketd::search {

class OrderSearch;

// Better is smaller: within the limit, then less time, then less memory; above it, less memory.
struct Score {
  bool over = true;
  int64_t first = kNever, second = kNever;
  friend auto operator<=>(const Score&, const Score&) = default;
};
Score ScoreOf(const Figures& figures, int64_t limit);

// An order, and the settings that it came from.
struct Found {
  Decoded decoded;
  Settings settings;
};

// Where a search ends: its decodes have placed `budget` leaders together, or a plan within the
// limit takes no more than `enough_ps`.
struct Stop {
  int64_t budget = 0, enough_ps = 0;
  int64_t order_budget = 0;  // beside the decodes: of orders that are changed action by action
};

// Deterministic: the same problem, limit and budget give the same result, and a larger budget looks
// at the same candidates first, so it is never worse.
class Search {
 public:
  // Decodes until the last stop; at least once. `at_stop` is called on the way wherever a search
  // with that stop alone would have ended. The problem outlives the search.
  Search(const Problem& problem, int64_t limit, std::vector<Stop> stops,
         std::function<void(size_t)> at_stop = nullptr);
  ~Search();

  // Another plan's order, whose figures need not be filled, to start from as well.
  void StartFrom(Decoded other) { other_ = std::move(other); }

  void Run();

  // Instead of Run(): looks among orders that take at most `ceiling_ps` for the one that fares best
  // by the evaluator with its waits as late as `replay` puts them, from those it is given. Both
  // outlive the search.
  void EvaluateBy(RobustnessEvaluator& evaluator, OrderReplay& replay, int64_t ceiling_ps);
  void LookAround();

  // What another search found: the best, if it is better. May be called where a stop is passed.
  void Adopt(const Found& found);

  const Found& best() const { return best_; }
  Score score() const { return best_score_; }
  // What was best for a while, the last dozen, oldest first.
  const std::deque<Found>& found() const { return found_; }
  // Of the fastest order that was decoded, whatever memory it takes.
  int64_t fastest_ps() const { return fastest_ps_; }

 private:
  friend class OrderSearch;
  friend class PartitionSearch;

  struct Tried {
    Score score;
    Settings settings;
    Figures first;                  // of its first decode,
    std::vector<Reserve> reserves;  // and where that was over the limit
  };

  // Decodes, with a tighter cap where memory overflows, and keeps what is best. Returns the score;
  // what is sure to take longer than `cutoff_ps` is not decoded to its end.
  Score Try(const Settings& settings, const Partition* partition, int64_t cutoff_ps);
  Score Try(const Settings& settings) { return Try(settings, nullptr, CutoffOf(best_score_)); }
  static int64_t CutoffOf(const Score& score) { return score.over ? kNever : score.first; }
  Score DecodeOnce(const Settings& settings, const Partition* partition, int64_t cap,
                   int64_t cutoff_ps);
  Score Repair(const Settings& settings, const Partition* partition, int64_t cutoff_ps);
  bool IsLost(int64_t cutoff_ps) const;
  int64_t CapOf(const Settings& settings) const { return Share(limit_, settings.memory_share); }
  void Keep(const Score& score, const Decoded& decoded, const Settings& settings, bool remember);
  Score Offer(const Decoded& order, int64_t cutoff_ps);
  Score ScoreAsAsked(const Decoded& decoded, int64_t cutoff_ps);
  bool Spent();
  void Pass();
  void ReserveWhereOver();
  void TryStarts();
  void TryBuckets(const std::vector<Batch>& batches, size_t most_starts);
  std::vector<Batch> BucketsBetweenInline() const;
  void Descents();
  bool Sweep(const Knob& knob, Settings& at, Score& score);
  bool Descend(Settings& at, Score& score);
  void DescendFrom(Settings at, Score score);

  const Problem& problem_;
  const int64_t limit_;
  const std::vector<Stop> stops_;
  const std::function<void(size_t)> at_stop_;
  size_t passed_ = 0;  // of the stops
  Decoder decoder_;
  int64_t placed_ = 0, fastest_ps_ = kNever;
  Units units_;  // of the settings
  std::vector<Knob> knobs_;
  Found best_;
  Score best_score_;
  // The best that the decoder made.
  struct Made {
    Score score;
    Settings settings;
    std::vector<Batch> batches;
    bool is_fixed = false;  // they were decided beforehand
  };
  Made decoded_;
  std::unique_ptr<OrderSearch> orders_;  // from the first stop that has a budget for it
  bool near_only_ = false;               // sweeps look at neighbours of where they stand
  std::vector<Tried> starts_;            // best first
  Decoded other_;                        // another plan; empty: none
  std::deque<Found> found_;
  std::vector<Reserve> reserves_;             // of one Try()
  Figures last_;                              // of the last decode
  RobustnessEvaluator* evaluator_ = nullptr;  // of orders that take at most
  int64_t ceiling_ps_ = kNever;               // so much,
  OrderReplay* late_ = nullptr;               // with their waits late
};

}  // namespace bucketd::search
