#include "passes/auto/search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "passes/auto/partition_search.h"

namespace bucketd::search {
namespace {

// Decodes for one candidate: a first one, and tighter ones while memory overflows.
constexpr int kMaxDecodes = 4;
constexpr int kMaxRounds = 3;

// Beyond this share of the best total a start is not worth a search of partitions.
constexpr int32_t kHopeless = 1600;

}  // namespace

Score ScoreOf(const Figures& figures, int64_t limit) {
  if (figures.peak_bytes > limit) return {true, figures.peak_bytes, figures.total_ps};
  return {false, figures.total_ps, figures.peak_bytes};
}

Search::Search(const Problem& problem, int64_t limit, int64_t budget)
    : problem_(problem), limit_(limit), budget_(budget), decoder_(problem) {
  for (const Transfer& t : problem.transfers) {
    alpha_ps_ = std::max(alpha_ps_, t.alpha_ps);
    longest_ps_ = std::max(longest_ps_, t.alpha_ps + t.wire_ps);
  }
  span_ps_ = problem.total_ps();
}

Score Search::Try(const Settings& settings, const Partition* partition, int64_t cutoff_ps) {
  int64_t cap = Share(limit_, settings.memory_share);
  Score best;
  for (int round = 0; round < kMaxDecodes; ++round) {
    const Decoded& decoded = decoder_.Decode(settings, cap, partition, cutoff_ps);
    ++decodes_;
    // What a decode clears before it begins, too.
    placed_ += decoder_.placed() + problem_.size() / 8;
    const Figures& figures = decoded.figures;
    const Score score = ScoreOf(figures, limit_);
    fastest_ps_ = std::min(fastest_ps_, figures.total_ps);
    if (score < best) {
      best = score;
      if (keep_last_) last_ = decoded;
    }
    if (score < best_score_) {
      best_score_ = score;
      best_ = decoded;
      best_settings_ = settings;
    }
    const bool lost = figures.total_ps > std::min(cutoff_ps, CutoffOf(best_score_));
    if (!score.over || lost || Spent()) break;
    // What is too much is taken off once, twice, four times.
    cap -= (figures.peak_bytes - limit_) * (int64_t{1} << round) * 21 / 20 + 1024;
  }
  return best;
}

std::vector<Settings> Search::Starts() const {
  const int64_t alpha = alpha_ps_, longest = longest_ps_;
  std::vector<Settings> starts;
  const Settings plain;
  const auto eager = [&](int32_t wire_weight, int32_t compute_weight) {
    Settings s = plain;
    s.eager = true;
    s.slack_ps = kNever / 2;
    s.wire_weight = wire_weight;
    s.compute_weight = compute_weight;
    return s;
  };
  for (const int64_t slack : {2 * alpha, 20 * alpha}) {
    for (const int64_t tail : {int64_t{0}, longest + longest / 2}) {
      for (const int32_t weight : {80, 600}) {
        Settings s = plain;
        s.wire_weight = weight;
        s.compute_weight = weight < 500 ? 1000 : 400;
        s.slack_ps = slack;
        s.batch_ps = slack / 2;
        s.gather_cap_ps = s.reduce_cap_ps = std::max(longest, 4 * slack);
        s.tail_queue_ps = tail;
        starts.push_back(s);
      }
    }
  }
  for (const int64_t late : {alpha, 4 * alpha}) {
    Settings s = eager(1000, 100);
    s.batch_ps = s.late_ps = late;
    starts.push_back(s);
  }
  for (const auto& [lag, batch, wire, compute] : {std::tuple{900, alpha, 1000, 50},
                                                  {500, 10 * alpha, 1000, 50},
                                                  {500, 10 * alpha, 300, 1000}}) {
    Settings s = eager(wire, compute);
    s.batch_ps = batch;
    s.lag = lag;
    starts.push_back(s);
  }
  for (const int64_t late : {int64_t{0}, kNever / 2}) {
    for (const int32_t share : {500, kNoShare}) {
      Settings s = eager(600, 400);
      s.late_ps = late;
      s.batch_share = share;
      starts.push_back(s);
    }
  }
  for (const auto& [cap, batch, tail] :
       {std::tuple{kNever, 10 * alpha, int64_t{0}},
        {std::max(longest, 40 * alpha), 10 * alpha, int64_t{0}},
        {std::max(longest, 100 * alpha), 40 * alpha, int64_t{0}},
        {std::max(longest, 100 * alpha), 40 * alpha, longest + longest / 2}}) {
    Settings s = eager(1000, 20);
    s.packed_memory = true;
    s.lag = 500;
    s.gather_cap_ps = s.reduce_cap_ps = cap;
    s.batch_ps = batch;
    s.tail_queue_ps = tail;
    starts.push_back(s);
  }
  Settings alone = eager(500, 500);
  alone.gather_cap_ps = alone.reduce_cap_ps = alone.batch_ps = 0;
  starts.push_back(alone);
  alone.eager = false;
  alone.slack_ps = 5 * alpha;
  starts.push_back(alone);
  return starts;
}

void Search::TryStarts() {
  for (const Settings& settings : Starts()) {
    // Also what is a little worse may become the best with other buckets.
    const int64_t cutoff = best_score_.over ? kNever : Share(best_score_.first, kHopeless);
    starts_.push_back({Try(settings, nullptr, cutoff), settings});
    if (Spent()) return;
  }
  std::stable_sort(starts_.begin(), starts_.end(),
                   [](const Tried& a, const Tried& b) { return a.score < b.score; });
}

// Another plan's buckets under the settings that were best so far.
void Search::TryHints() {
  constexpr size_t kMostStarts = 3;
  for (const std::vector<Batch>& hint : hints_) {
    PartitionSearch replay(*this, hint, best_settings_);
    for (size_t i = 0; i < starts_.size() && i < kMostStarts && !Spent(); ++i) {
      replay.Replay(starts_[i].settings);
    }
  }
}

// Every value in the place of the best settings' own; true if one was better.
template <typename Value>
bool Search::Sweep(Value Settings::*field, const std::vector<Value>& values) {
  const Settings base = best_settings_;
  const Score before = best_score_;
  for (const Value& value : values) {
    if (Spent()) break;
    Settings settings = base;
    if (settings.*field == value) continue;
    settings.*field = value;
    Try(settings);
  }
  return best_score_ < before;
}

bool Search::SweepWeights() {
  const Settings base = best_settings_;
  const Score before = best_score_;
  for (const auto& [wire, compute] :
       {std::pair{20, 1000}, {80, 1000}, {300, 1000}, {600, 400}, {1000, 50}}) {
    if (Spent()) break;
    Settings settings = base;
    settings.wire_weight = wire;
    settings.compute_weight = compute;
    if (settings != base) Try(settings);
  }
  return best_score_ < before;
}

// One setting after the other, each over a few values.
bool Search::Descend() {
  const int64_t a = alpha_ps_, l = longest_ps_, span = span_ps_, forever = kNever / 2;
  const Score before = best_score_;
  using S = Settings;
  Sweep<int64_t>(&S::slack_ps,
                 {0, a / 2, a, 2 * a, 5 * a, 10 * a, 25 * a, 60 * a, 200 * a, forever});
  Sweep<int64_t>(&S::tail_queue_ps, {0, l / 2, l, l + l / 2, 5 * l / 2, 5 * l, span / 50, span / 20,
                                     span / 10, span / 5});
  Sweep<int64_t>(&S::batch_ps, {0, a / 3, a, 2 * a, 4 * a, 10 * a, 30 * a, 100 * a, forever});
  Sweep<int32_t>(&S::batch_share, {20, 100, 200, 350, 700, 1000, 2000, kNoShare});
  Sweep<int64_t>(&S::late_ps, {0, a / 3, a, 2 * a, 5 * a, 15 * a, 50 * a});
  Sweep<int32_t>(&S::lag, {0, 100, 300, 500, 800, 950, 1000});
  if (!Spent()) {
    S head = best_settings_;
    head.head_buckets = 1;
    for (const int64_t late : {int64_t{0}, a / 3, a, 3 * a, 10 * a}) {
      head.head_late_ps = late;
      if (!Spent()) Try(head);
    }
  }
  SweepWeights();
  Sweep<int32_t>(&S::tail_reach, {1000, 1500, 2000, 3000, 5000, 1'000'000});
  Sweep<int64_t>(&S::queue_ps, {0, a / 2, a, 2 * a, 5 * a, 20 * a, l, 2 * l, span / 50, span / 20});
  Sweep<int32_t>(&S::overshoot, {0, 300, 600, 1000});
  Sweep<int32_t>(&S::window, {0, 20, 100, 400, 4000, 1'000'000});
  Sweep<int32_t>(&S::lead, {1000, 1150, 1300, 1600, 2000, 3000, 5000});
  Sweep<bool>(&S::eager, {false, true});
  Sweep<int64_t>(&S::gather_cap_ps, {a, 4 * a, l / 2, l, 2 * l, 5 * l, forever});
  Sweep<int64_t>(&S::reduce_cap_ps, {a, 4 * a, l / 2, l, 2 * l, 5 * l, forever});
  Sweep<int32_t>(&S::head_buckets, {0, 2, 3});
  Sweep<bool>(&S::largest_last, {false, true});
  Sweep<bool>(&S::packed_memory, {false, true});
  Sweep<int32_t>(&S::memory_share, {1000, 990, 970, 940});
  return best_score_ < before;
}

void Search::Run() {
  TryStarts();
  TryHints();
  for (int round = 0; round < kMaxRounds && !Spent(); ++round) {
    if (!Descend()) break;
  }
  if (Spent() || best_score_.over) return;
  PartitionSearch(*this, best_.batches, best_settings_).Climb();
  // Elsewhere the buckets may lie better.
  keep_last_ = true;
  for (const Tried& start : starts_) {
    if (Spent()) return;
    if (start.score.over || start.score.first > Share(best_score_.first, kHopeless)) continue;
    Try(start.settings, nullptr, kNever);
    PartitionSearch(*this, last_.batches, start.settings).Climb();
  }
}

}  // namespace bucketd::search
