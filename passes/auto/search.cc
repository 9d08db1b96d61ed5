#include "passes/auto/search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "passes/auto/order_search.h"
#include "passes/auto/partition_search.h"
#include "passes/base/cancellation.h"

namespace bucketd::search {
namespace {

// Decodes for one candidate: a first one, and tighter ones while memory overflows.
constexpr int kMaxDecodes = 4;
// Of which so many leave memory free only where it overflowed.
constexpr int kLocalRepairs = 2;
constexpr int kMaxRounds = 3;

// Beyond this share of the best total a start is not worth a search of partitions.
constexpr int32_t kHopeless = 1600;

// Small graphs get enough decodes for all values of every knob before the buckets, from so many
// starts.
constexpr int kDescents = 3;

constexpr size_t kMostFound = 12;

// To look up what is known costs so much less than a decode; and a replay.
constexpr int32_t kRecallsOfADecode = 32;
constexpr int32_t kReplaysOfADecode = 4;

}  // namespace

Score ScoreOf(const Figures& figures, int64_t limit) {
  if (figures.peak_bytes > limit) return {true, figures.peak_bytes, figures.total_ps};
  return {false, figures.total_ps, figures.peak_bytes};
}

Search::Search(const Problem& problem, int64_t limit, std::vector<Stop> stops,
               std::function<void(size_t)> at_stop)
    : problem_(problem),
      limit_(limit),
      stops_(std::move(stops)),
      at_stop_(std::move(at_stop)),
      decoder_(problem) {
  for (const Transfer& t : problem.transfers) {
    alpha_ps_ = std::max(alpha_ps_, t.alpha_ps);
    longest_ps_ = std::max(longest_ps_, t.alpha_ps + t.wire_ps);
  }
  knobs_ = KnobsOf(alpha_ps_, longest_ps_, problem.total_ps());
}

Search::~Search() = default;

// Whether the last stop is behind.
bool Search::Spent() {
  if (IsCancelled()) passed_ = stops_.size();
  while (passed_ < stops_.size() &&
         (placed_ >= stops_[passed_].budget ||
          (!best_score_.over && best_score_.first <= stops_[passed_].enough_ps))) {
    Pass();
  }
  return passed_ == stops_.size();
}

// Whether random changes have gained nothing for too long, for a search of any stop.
bool Search::IsTired(int64_t gained_at) {
  while (passed_ < stops_.size() && placed_ - gained_at > stops_[passed_].budget / 4) Pass();
  return Spent();
}

void Search::Pass() {
  const Stop& stop = stops_[passed_];
  if (stop.order_budget > 0 && (best_score_.over || best_score_.first > stop.enough_ps)) {
    if (orders_ == nullptr) orders_ = std::make_unique<OrderSearch>(*this);
    orders_->WorkUntil(stop.order_budget, stop.enough_ps);
  }
  if (at_stop_ != nullptr) at_stop_(passed_);
  ++passed_;
}

Score Search::Try(const Settings& settings, const Partition* partition, int64_t cutoff_ps) {
  const uint64_t hash = partition == nullptr ? 0 : HashOf(*partition);
  if (const Score* known = known_.Find(hash, settings, CapOf(settings), cutoff_ps)) {
    placed_ += problem_.size() / kRecallsOfADecode + 1;
    return *known;
  }
  reserves_.clear();
  seen_ = {};
  Score score = DecodeOnce(settings, partition, CapOf(settings), cutoff_ps);
  seen_.Join(decoder_.settings());
  const Watched cap = decoder_.cap();  // exact if it was not enough
  if (score.over && !Spent() && !IsLost(cutoff_ps)) {
    ReserveWhereOver();
    score = std::min(score, Repair(settings, partition, cutoff_ps));
  }
  known_.Add(hash, seen_, cap, cutoff_ps, score);
  return score;
}

Score Search::DecodeOnce(const Settings& settings, const Partition* partition, int64_t cap,
                         int64_t cutoff_ps) {
  const Decoded& decoded = decoder_.Decode(
      settings, cap, partition, evaluator_ == nullptr ? cutoff_ps : ceiling_ps_, reserves_);
  ++decodes_;
  // What a decode clears before it begins, too.
  placed_ += decoder_.placed() + problem_.size() / 8;
  last_ = decoded.figures;
  fastest_ps_ = std::min(fastest_ps_, last_.total_ps);
  const Score score = ScoreAsAsked(decoded, cutoff_ps);
  if (score < decoded_.score) {
    decoded_ = {score, settings, decoded.batches, partition != nullptr};
  }
  if (score < best_score_) {
    if (partition != nullptr && !score.over) Remember(decoded, settings);
    best_score_ = score;
    best_ = decoded;
    best_settings_ = settings;
  }
  return score;
}

void Search::Remember(const Decoded& decoded, const Settings& settings) {
  found_.push_back({decoded, settings});
  if (found_.size() > kMostFound) found_.pop_front();
}

// An order that was not decoded, but came from one by those settings.
Score Search::Offer(const Decoded& order, int64_t cutoff_ps) {
  fastest_ps_ = std::min(fastest_ps_, order.figures.total_ps);
  const Score score = ScoreAsAsked(order, cutoff_ps);
  if (score < best_score_) {
    if (!score.over) Remember(order, decoded_.settings);
    best_score_ = score;
    best_ = order;
    best_settings_ = decoded_.settings;
  }
  return score;
}

Score Search::ScoreAsAsked(const Decoded& decoded, int64_t cutoff_ps) {
  const Figures& figures = decoded.figures;
  if (figures.peak_bytes > limit_) return ScoreOf(figures, limit_);
  if (evaluator_ == nullptr) return ScoreWeighed(decoded, cutoff_ps);
  if (figures.total_ps > ceiling_ps_) return {true, figures.total_ps, figures.peak_bytes};
  const int64_t sum_ps = evaluator_->Of(decoded, cutoff_ps);
  placed_ += evaluator_->replayed() / kReplaysOfADecode;
  return {false, sum_ps, figures.total_ps};
}

// REQUIRES: within the limit.
Score Search::ScoreWeighed(const Decoded& decoded, int64_t cutoff_ps) {
  Score score = ScoreOf(decoded.figures, limit_);
  if (weight_ == 0 || score.first > cutoff_ps) return score;  // the latter have no whole order
  placed_ += problem_.size() / kReplaysOfADecode;
  score.first += (nominal_->Nominal(decoded) - score.first) / (1 + weight_) * weight_;
  return score;
}

void Search::Weigh(RobustnessEvaluator& said, int32_t weight) {
  nominal_ = &said;
  weight_ = weight;
}

void Search::EvaluateBy(RobustnessEvaluator& evaluator, int64_t ceiling_ps) {
  evaluator_ = &evaluator;
  ceiling_ps_ = ceiling_ps;
}

void Search::Adopt(const Decoded& decoded, const Settings& settings) {
  const Score score = ScoreAsAsked(decoded, CutoffOf(best_score_));
  if (!decoded.replayed && score < decoded_.score) {
    decoded_ = {score, settings, decoded.batches, true};
  }
  if (!(score < best_score_)) return;
  best_score_ = score;
  best_ = decoded;
  best_settings_ = settings;
}

void Search::LookAround() {
  if (best_score_.over || Spent()) return;
  PartitionSearch(*this, best_.batches, best_settings_).Climb();
  PartitionSearch(*this, best_.batches, best_settings_).IteratedLocalSearch();
}

// Decodes with memory reserved where it overflowed, then with a tighter cap. REQUIRES: the last
// decode was over the limit and reserves_ say where.
Score Search::Repair(const Settings& settings, const Partition* partition, int64_t cutoff_ps) {
  int64_t cap = CapOf(settings);
  Score best;
  for (int round = 1; round < kMaxDecodes; ++round) {
    best = std::min(best, DecodeOnce(settings, partition, cap, cutoff_ps));
    seen_.Join(decoder_.settings());
    if (last_.peak_bytes <= limit_ || IsLost(cutoff_ps) || Spent()) break;
    if (round < kLocalRepairs) {
      ReserveWhereOver();
    } else {
      // What is too much is taken off everywhere.
      cap -= (last_.peak_bytes - limit_) * (int64_t{1} << round) * 21 / 20 + 1024;
    }
  }
  return best;
}

// Whether repairs of the last decode can hardly make it better than what there is.
bool Search::IsLost(int64_t cutoff_ps) const {
  if (evaluator_ != nullptr) return last_.total_ps > ceiling_ps_;
  return last_.total_ps > std::min(cutoff_ps, CutoffOf(best_score_));
}

// So that early gathers are not in the way there again.
void Search::ReserveWhereOver() {
  const LeaderId around = std::max(8, problem_.size() / 128);
  LeaderId first = -1;
  for (const Overflow& over : decoder_.over()) {
    const int64_t bytes = over.bytes + over.bytes / 20 + 1024;
    if (first >= 0 && over.at - first <= around) {
      reserves_.back().bytes = std::max(reserves_.back().bytes, bytes);
      continue;
    }
    first = over.at;
    reserves_.push_back(
        {std::max(0, first - around), std::min(problem_.size(), first + 2 * around), bytes});
  }
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
    s.sinks_first = lag < 900 && compute < 1000;
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
    s.sinks_first = tail == 0;
    s.lag = 500;
    s.gather_cap_ps = s.reduce_cap_ps = cap;
    s.batch_ps = batch;
    s.tail_queue_ps = tail;
    starts.push_back(s);
  }
  if (problem_.is_small()) {
    // Weight gradients held back everywhere, to fill waits; gathers just in time, one by one.
    Settings filling = plain;
    filling.slack_ps = alpha / 2;
    filling.gather_cap_ps = alpha;
    filling.late_ps = alpha / 3;
    filling.wire_weight = 300;
    filling.batch_ps = 0;
    filling.tail_queue_ps = problem_.total_ps() / 5;
    filling.tail_reach = 5000;
    starts.push_back(filling);
  }
  Settings alone = eager(500, 500);
  alone.gather_cap_ps = alone.reduce_cap_ps = alone.batch_ps = 0;
  starts.push_back(alone);
  alone.eager = false;
  alone.slack_ps = 5 * alpha;
  starts.push_back(alone);
  return starts;
}

// Every start once; then those that took too much memory are repaired, fastest first, as long as
// they are faster than what is within it.
void Search::TryStarts() {
  for (const Settings& settings : Starts()) {
    // Also what is a little worse may become the best with other buckets.
    const int64_t cutoff = best_score_.over ? kNever : Share(best_score_.first, kHopeless);
    reserves_.clear();
    const Score score = DecodeOnce(settings, nullptr, CapOf(settings), cutoff);
    if (score.over) {
      ReserveWhereOver();
    } else {
      known_.Add(0, decoder_.settings(), decoder_.cap(), cutoff, score);
    }
    starts_.push_back({score, settings, last_, reserves_});
    if (Spent()) return;
  }
  std::stable_sort(starts_.begin(), starts_.end(), [](const Tried& a, const Tried& b) {
    return a.first.total_ps < b.first.total_ps;
  });
  Figures before;
  for (Tried& start : starts_) {
    const bool again = start.first == before;
    before = start.first;
    if (!start.score.over || again || Spent()) continue;
    if (start.first.total_ps > CutoffOf(best_score_)) break;
    reserves_ = start.reserves;
    start.score = Repair(start.settings, nullptr, kNever);
  }
  std::stable_sort(starts_.begin(), starts_.end(),
                   [](const Tried& a, const Tried& b) { return a.score < b.score; });
}

// Another plan's buckets under the settings that were best so far, with reductions behind the
// gathers that are due and before them.
void Search::TryOtherPlan() {
  constexpr size_t kMostStarts = 2;
  const auto several = [](const Batch& batch) { return batch.members.size() > 1; };
  if (std::none_of(other_.batches.begin(), other_.batches.end(), several)) return;
  PartitionSearch replay(*this, other_.batches, best_settings_);
  for (size_t i = 0; i < starts_.size() && i < kMostStarts; ++i) {
    for (const bool sinks_first : {false, true}) {
      if (Spent()) return;
      Settings settings = starts_[i].settings;
      settings.sinks_first = sinks_first;
      replay.Replay(settings);
    }
  }
}

// Other values of a knob, the best of which stays; true if one was better. Near ones only: as far
// up and down the list as each is better than the one before.
bool Search::Sweep(const Knob& knob, Settings& at, Score& score) {
  const Settings base = at;
  const int64_t now = knob.get(base);
  const Score before = score;
  const auto better = [&](int64_t value) {
    if (value == now || Spent()) return false;
    Settings settings = base;
    knob.set(settings, value);
    const Score other = Try(settings, nullptr, CutoffOf(score));
    if (!(other < score)) return false;
    score = other;
    at = settings;
    return true;
  };
  const std::vector<int64_t>& values = knob.values;
  if (!near_only_) {
    for (const int64_t value : values) better(value);
    return score < before;
  }
  const auto here = std::lower_bound(values.begin(), values.end(), now);
  for (auto up = here; up != values.end() && (*up == now || better(*up)); ++up) {
  }
  if (score < before) return true;
  for (auto down = here; down != values.begin() && better(*--down);) {
  }
  return score < before;
}

// One knob after the other.
bool Search::Descend(Settings& at, Score& score) {
  bool improved = false;
  for (const Knob& knob : knobs_) improved = Sweep(knob, at, score) || improved;
  return improved;
}

void Search::DescendFromBest() {
  for (int round = 0; round < kMaxRounds && !Spent(); ++round) {
    Settings at = decoded_.settings;
    Score score = decoded_.score;
    if (!Descend(at, score)) return;
  }
}

// They stay starts, with what was found.
void Search::DescendFromStarts() {
  Figures before;
  int tried = 0;
  for (Tried& start : starts_) {
    if (start.score.over || start.score.first > Share(best_score_.first, kHopeless)) break;
    if (start.first == before) continue;
    before = start.first;
    for (int round = 0; round < (tried == 0 ? kMaxRounds : 1) && !Spent(); ++round) {
      if (!Descend(start.settings, start.score)) break;
    }
    if (++tried == (near_only_ ? 1 : kDescents) || Spent()) break;
  }
  std::stable_sort(starts_.begin(), starts_.end(),
                   [](const Tried& a, const Tried& b) { return a.score < b.score; });
}

void Search::Run() {
  Descents();
  while (passed_ < stops_.size()) Pass();
}

void Search::Descents() {
  TryStarts();
  TryOtherPlan();
  near_only_ = !problem_.is_small();
  if (!near_only_ || !decoded_.is_fixed) DescendFromStarts();
  if (Spent() || decoded_.score.over) return;
  PartitionSearch(*this, decoded_.batches, decoded_.settings).Climb();
  near_only_ = false;
  DescendFromBest();
  if (!decoded_.is_fixed && !Spent()) {
    PartitionSearch(*this, decoded_.batches, decoded_.settings).Climb();
  }
  // Elsewhere the buckets may lie better.
  for (const Tried& start : starts_) {
    if (Spent()) return;
    if (start.score.over || start.score.first > Share(decoded_.score.first, kHopeless)) continue;
    reserves_.clear();
    PartitionSearch(*this, decoder_.Decode(start.settings, CapOf(start.settings), nullptr).batches,
                    start.settings)
        .Climb();
  }
  if (!Spent()) PartitionSearch(*this, decoded_.batches, decoded_.settings).IteratedLocalSearch();
}

}  // namespace bucketd::search
