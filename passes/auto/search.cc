#include "passes/auto/search.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "passes/auto/order_search.h"
#include "passes/auto/partition_search.h"
#include "passes/base/cancellation.h"

namespace bucketd::search {
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
    units_.alpha_ps = std::max(units_.alpha_ps, t.alpha_ps);
    units_.longest_ps = std::max(units_.longest_ps, t.alpha_ps + t.wire_ps);
  }
  units_.span_ps = problem.total_ps();
  std::vector<Knob> knobs = KnobsOf(units_);
  for (size_t i = 0; i < knobs.size(); ++i) {
    if ((problem.tuning.knobs >> i & 1) != 0) knobs_.push_back(std::move(knobs[i]));
  }
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

void Search::Pass() {
  const Stop& stop = stops_[passed_];
  if (problem_.tuning.Has(Part::kOrders) && stop.order_budget > 0 &&
      (best_score_.over || best_score_.first > stop.enough_ps)) {
    if (orders_ == nullptr) orders_ = std::make_unique<OrderSearch>(*this);
    orders_->WorkUntil(stop.order_budget, stop.enough_ps);
  }
  if (at_stop_ != nullptr) at_stop_(passed_);
  ++passed_;
}

Score Search::Try(const Settings& settings, const Partition* partition, int64_t cutoff_ps) {
  reserves_.clear();
  const Score score = DecodeOnce(settings, partition, CapOf(settings), cutoff_ps);
  if (!score.over || Spent() || IsLost(cutoff_ps)) return score;
  ReserveWhereOver();
  return std::min(score, Repair(settings, partition, cutoff_ps));
}

Score Search::DecodeOnce(const Settings& settings, const Partition* partition, int64_t cap,
                         int64_t cutoff_ps) {
  const Decoded& decoded = decoder_.Decode(
      settings, cap, partition, evaluator_ == nullptr ? cutoff_ps : ceiling_ps_, reserves_);
  // What a decode clears before it begins, too.
  placed_ += decoder_.placed() + problem_.size() / kClearsOfADecode;
  last_ = decoded.figures;
  fastest_ps_ = std::min(fastest_ps_, last_.total_ps);
  const Score score = ScoreAsAsked(decoded, cutoff_ps);
  if (score < decoded_.score) {
    decoded_ = {score, settings, decoded.batches, partition != nullptr};
  }
  Keep(score, decoded, settings, partition != nullptr);
  return score;
}

// As the best, if it is better; what is remembered is found() later, too.
void Search::Keep(const Score& score, const Decoded& decoded, const Settings& settings,
                  bool remember) {
  if (!(score < best_score_)) return;
  best_score_ = score;
  best_.decoded = decoded;
  best_.settings = settings;
  if (!remember || score.over) return;
  found_.push_back(best_);
  if (found_.size() > kMostFound) found_.pop_front();
}

// An order that was not decoded, but came from one by those settings.
Score Search::Offer(const Decoded& order, int64_t cutoff_ps) {
  fastest_ps_ = std::min(fastest_ps_, order.figures.total_ps);
  const Score score = ScoreAsAsked(order, cutoff_ps);
  Keep(score, order, decoded_.settings, true);
  return score;
}

Score Search::ScoreAsAsked(const Decoded& decoded, int64_t cutoff_ps) {
  const Figures& figures = decoded.figures;
  if (evaluator_ == nullptr || figures.peak_bytes > limit_) return ScoreOf(figures, limit_);
  if (figures.total_ps > ceiling_ps_) return {true, figures.total_ps, figures.peak_bytes};
  const int64_t nominal_ps = evaluator_->cases() / kCasesOfNominal * figures.total_ps;
  const int64_t sum_ps = nominal_ps + evaluator_->Of(late_->Late(decoded), cutoff_ps - nominal_ps);
  placed_ += evaluator_->replayed() / kReplaysOfADecode;
  return {false, sum_ps, figures.total_ps};
}

void Search::EvaluateBy(RobustnessEvaluator& evaluator, OrderReplay& replay, int64_t ceiling_ps) {
  late_ = &replay;
  evaluator_ = &evaluator;
  ceiling_ps_ = ceiling_ps;
}

void Search::Adopt(const Found& found) {
  const auto& [decoded, settings] = found;
  const Score score = ScoreAsAsked(decoded, CutoffOf(best_score_));
  if (!decoded.replayed && score < decoded_.score) {
    decoded_ = {score, settings, decoded.batches, true};
  }
  Keep(score, decoded, settings, false);
}

void Search::LookAround() {
  if (best_score_.over || Spent()) return;
  PartitionSearch(*this, best_.decoded.batches, best_.settings).Climb();
}

// Decodes with memory reserved where it overflowed, then with a tighter cap. REQUIRES: the last
// decode was over the limit and reserves_ say where.
Score Search::Repair(const Settings& settings, const Partition* partition, int64_t cutoff_ps) {
  int64_t cap = CapOf(settings);
  Score best;
  for (int round = 1; round < kMaxDecodes; ++round) {
    best = std::min(best, DecodeOnce(settings, partition, cap, cutoff_ps));
    if (last_.peak_bytes <= limit_ || IsLost(cutoff_ps) || Spent()) break;
    if (round < kLocalRepairs) {
      ReserveWhereOver();
    } else {
      // What is too much is taken off everywhere.
      const int64_t over = (last_.peak_bytes - limit_) * (int64_t{1} << round);
      cap -= over + Share(over, kSpare) + kOneMore;
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
  const LeaderId around = std::max(kLeastAround, problem_.size() / kPartAround);
  LeaderId first = -1;
  for (const Overflow& over : decoder_.over()) {
    const int64_t bytes = over.bytes + Share(over.bytes, kSpare) + kOneMore;
    if (first >= 0 && over.at >= first && over.at - first <= around) {
      reserves_.back().bytes = std::max(reserves_.back().bytes, bytes);
      continue;
    }
    first = over.at;
    reserves_.push_back(
        {std::max(0, first - around), std::min(problem_.size(), first + 2 * around), bytes});
  }
}

// Every start once; then those that took too much memory are repaired, fastest first, as long as
// they are faster than what is within it.
void Search::TryStarts() {
  const std::vector<Start> starts = StartsOf(units_);
  for (size_t i = 0; i < starts.size(); ++i) {
    if ((problem_.tuning.starts >> i & 1) == 0) continue;
    const Settings& settings = starts[i].settings;
    // Also what is a little worse may become the best with other buckets.
    const int64_t cutoff = best_score_.over ? kNever : Share(best_score_.first, kHopeless);
    reserves_.clear();
    const Score score = DecodeOnce(settings, nullptr, CapOf(settings), cutoff);
    if (score.over) ReserveWhereOver();
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

// Buckets that were not decided by a decode, under the settings that were best so far, with
// reductions behind the gathers that are due and before them.
void Search::TryBuckets(const std::vector<Batch>& batches, size_t most_starts) {
  const auto several = [](const Batch& batch) { return batch.members.size() > 1; };
  if (std::none_of(batches.begin(), batches.end(), several)) return;
  const auto is_sink = [](const Transfer& t) { return t.use == Use::kSink; };
  const bool sinks = std::any_of(problem_.transfers.begin(), problem_.transfers.end(), is_sink);
  PartitionSearch replay(*this, batches, best_.settings);
  for (size_t i = 0; i < starts_.size() && i < most_starts; ++i) {
    for (const bool sinks_first : {false, true}) {
      if (sinks_first && !sinks) continue;
      if (Spent()) return;
      Settings settings = starts_[i].settings;
      settings.sinks_first = sinks_first;
      replay.Replay(settings);
    }
  }
}

// One bucket of each key for what is needed between two collectives that the step waits for: there
// no wire has time for more. Nothing where nothing waits so.
std::vector<Batch> Search::BucketsBetweenInline() const {
  std::vector<int32_t> segment_of;  // of a leader; and of the end, where a root is due that nobody
                                    // uses
  int32_t segment = 0;
  for (LeaderId l = 0; l < problem_.size(); ++l) {
    const CollectiveId c = problem_.wait_of[Index(l)];
    if (c >= 0 && problem_.transfer(c).use == Use::kInline) ++segment;
    segment_of.push_back(segment);
  }
  segment_of.push_back(segment);
  if (segment == 0) return {};
  std::map<std::pair<int32_t, int32_t>, Batch> batches;  // by segment and key
  for (size_t c = 0; c < problem_.transfers.size(); ++c) {
    const Transfer& t = problem_.transfers[c];
    if (t.use == Use::kInline) continue;
    const LeaderId at = t.use == Use::kRoot ? t.need : t.start;
    batches[{segment_of[Index(at)], t.key}].members.push_back(static_cast<CollectiveId>(c));
  }
  std::vector<Batch> list;
  for (auto& [at, batch] : batches) list.push_back(std::move(batch));
  return list;
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

void Search::DescendFrom(Settings at, Score score) {
  for (int round = 0; round < kKnobRounds && !Spent() && Descend(at, score); ++round) {
  }
}

void Search::Run() {
  Descents();
  while (passed_ < stops_.size()) Pass();
}

void Search::Descents() {
  const Tuning& tuning = problem_.tuning;
  TryStarts();
  if (tuning.Has(Part::kOtherPlan)) TryBuckets(other_.batches, kStartsOfOtherPlan);
  if (tuning.Has(Part::kBetween)) TryBuckets(BucketsBetweenInline(), kStartsOfBetween);
  near_only_ = !problem_.is_small();
  if (!near_only_ || !decoded_.is_fixed) DescendFrom(starts_[0].settings, starts_[0].score);
  if (Spent() || decoded_.score.over) return;
  const auto climb = [&] {
    if (!tuning.Has(Part::kBuckets) || Spent()) return;
    PartitionSearch(*this, decoded_.batches, decoded_.settings).Climb();
  };
  climb();
  near_only_ = false;
  DescendFrom(decoded_.settings, decoded_.score);
  if (!decoded_.is_fixed) climb();
}

}  // namespace bucketd::search
