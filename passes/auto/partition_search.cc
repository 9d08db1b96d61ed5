#include "passes/auto/partition_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bucketd::search {
namespace {

constexpr int kMaxRounds = 20;

}  // namespace

PartitionSearch::PartitionSearch(Search& search, const std::vector<Batch>& batches,
                                 const Settings& settings)
    : search_(search), settings_(settings), rows_(Index(search.problem_.keys)) {
  const Problem& problem = search.problem_;
  form_of_.assign(problem.transfers.size(), Form::kFree);
  // A bucket that was made elsewhere may hold several keys; then each is a bucket of its own.
  std::vector<std::pair<int32_t, std::vector<CollectiveId>>> parts;
  for (const Batch& batch : batches) {
    parts.clear();
    for (const CollectiveId c : batch.members) {
      const Transfer& t = problem.transfer(c);
      if (t.use == Use::kInline) continue;
      auto part = std::find_if(parts.begin(), parts.end(),
                               [&](const auto& known) { return known.first == t.key; });
      if (part == parts.end()) part = parts.insert(parts.end(), {t.key, {}});
      part->second.push_back(c);
    }
    for (auto& [key, members] : parts) {
      AddBucket(rows_[Index(key)], std::move(members), batch.form);
    }
  }
  FindRowsBelow();
}

void PartitionSearch::FindRowsBelow() {
  const Problem& problem = search_.problem_;
  rows_below_.resize(rows_.size());
  place_.assign(form_of_.size(), -1);
  for (size_t row = 0; row < rows_.size(); ++row) {
    std::vector<size_t>& below = rows_below_[row];
    for (size_t i = 0; i < rows_[row].members.size(); ++i) {
      const Transfer& t = problem.transfer(rows_[row].members[i]);
      place_[Index(rows_[row].members[i])] = static_cast<int32_t>(i);
      if (t.next < 0 || !problem.transfer(t.next).mergeable) continue;
      below.push_back(Index(problem.transfer(t.next).key));
    }
    std::sort(below.begin(), below.end());
    below.erase(std::unique(below.begin(), below.end()), below.end());
    if (!below.empty()) downwards_.push_back(row);
  }
  const auto level = [&](size_t row) { return problem.transfer(rows_[row].members[0]).level; };
  std::stable_sort(downwards_.begin(), downwards_.end(),
                   [&](size_t a, size_t b) { return level(a) > level(b); });
}

// In order of need; collectives that may not share a bucket become one each.
void PartitionSearch::AddBucket(Row& row, std::vector<CollectiveId> members, Form form) {
  const Problem& problem = search_.problem_;
  std::sort(members.begin(), members.end(), [&](CollectiveId a, CollectiveId b) {
    const LeaderId need_a = problem.transfer(a).need, need_b = problem.transfer(b).need;
    return need_a != need_b ? need_a < need_b : a < b;
  });
  if (members.size() > 1) form_of_[Index(members[0])] = form;
  for (const CollectiveId c : members) {
    row.members.push_back(c);
    if (!problem.transfer(c).mergeable || c == members.back()) {
      row.ends.push_back(static_cast<int32_t>(row.members.size()));
    }
  }
}

Score PartitionSearch::Replay(const Settings& settings) {
  score_ = {};
  Try(settings);
  return score_;
}

bool PartitionSearch::Try(const Settings& settings) {
  partition_.bucket_of.assign(form_of_.size(), -1);
  partition_.form_of.clear();
  partition_.size_of.clear();
  for (const Row& row : rows_) {
    int32_t begin = 0;
    for (const int32_t end : row.ends) {
      const auto id = static_cast<int32_t>(partition_.size_of.size());
      for (int32_t i = begin; i < end; ++i) partition_.bucket_of[Index(row.members[Index(i)])] = id;
      partition_.size_of.push_back(end - begin);
      partition_.form_of.push_back(form_of_[Index(row.members[Index(begin)])]);
      begin = end;
    }
  }
  const Score score = search_.Try(settings, &partition_, Search::CutoffOf(score_));
  if (!(score < score_)) return false;
  score_ = score;
  return true;
}

bool PartitionSearch::TryCuts(size_t row, Cuts ends) {
  if (ends == rows_[row].ends || search_.Spent()) return false;
  std::swap(rows_[row].ends, ends);
  if (Try(settings_) || TryAligned(row)) {
    improved_ = true;
    return true;
  }
  std::swap(rows_[row].ends, ends);
  return false;
}

// A reduction of what was reduced before waits for all of the bucket above it: fewer or more
// buckets there seldom gain anything unless those below follow.
bool PartitionSearch::TryAligned(size_t row) {
  if (rows_below_[row].empty()) return false;
  const std::vector<Row> before = rows_;
  AlignBelow(row);
  if (rows_ != before && Try(settings_)) return true;
  rows_ = before;
  return false;
}

// Cuts the rows below where this one is cut, and so on downwards.
void PartitionSearch::AlignBelow(size_t row) {
  std::vector<bool> aligned(rows_.size(), false);
  aligned[row] = true;
  for (const size_t above : downwards_) {
    if (!aligned[above]) continue;
    for (const size_t below : rows_below_[above]) {
      Align(above, below);
      aligned[below] = true;
    }
  }
}

void PartitionSearch::Align(size_t row, size_t below) {
  Cuts ends;
  for (const int32_t end : rows_[row].ends) {
    if (end == static_cast<int32_t>(rows_[row].members.size())) break;
    const CollectiveId next = search_.problem_.transfer(rows_[row].members[Index(end)]).next;
    const bool here = next >= 0 && Index(search_.problem_.transfer(next).key) == below;
    if (here && place_[Index(next)] > 0) ends.push_back(place_[Index(next)]);
  }
  if (!rows_[below].members.empty()) {
    ends.push_back(static_cast<int32_t>(rows_[below].members.size()));
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  rows_[below].ends = std::move(ends);
}

// Merges runs of `by` buckets among buckets from to to - 1.
bool PartitionSearch::MergeEvery(size_t row, int32_t from, int32_t to, int32_t by) {
  const Cuts& ends = rows_[row].ends;
  Cuts merged;
  for (int32_t i = 0; i < static_cast<int32_t>(ends.size()); ++i) {
    const bool inside = i >= from && i < to;
    const bool last_of_run = (i - from) % by == by - 1 || i == to - 1;
    if (!inside || last_of_run) merged.push_back(ends[Index(i)]);
  }
  return TryCuts(row, std::move(merged));
}

void PartitionSearch::MergeRanges(size_t row) {
  const auto size = [&] { return static_cast<int32_t>(rows_[row].ends.size()); };
  while (size() > 2 && MergeEvery(row, 0, size(), 2)) {
  }
  for (const int32_t by : {3, 4}) MergeEvery(row, 0, size(), by);
  for (const int32_t parts : {4, 8}) {
    for (int32_t part = 0; part < parts; ++part) {
      const int32_t from = size() * part / parts, to = size() * (part + 1) / parts;
      if (to - from < 2) continue;
      MergeEvery(row, from, to, 2);
      const int32_t still = std::min(to, size());
      if (still - from >= 2) MergeEvery(row, from, still, still - from);
    }
  }
}

void PartitionSearch::HalveAll(size_t row) {
  Cuts halves;
  int32_t begin = 0;
  for (const int32_t end : rows_[row].ends) {
    if (end - begin > 1) halves.push_back(begin + (end - begin) / 2);
    halves.push_back(end);
    begin = end;
  }
  TryCuts(row, std::move(halves));
}

// As many buckets whose sizes grow, or shrink, by a factor.
void PartitionSearch::SplitGeometrically(size_t row) {
  const auto buckets = static_cast<int32_t>(rows_[row].ends.size());
  const auto size = static_cast<int64_t>(rows_[row].members.size());
  if (buckets < 2 || buckets > 40) return;
  for (const int64_t halves : {3, 4, 6}) {  // factor 1.5, 2, 3
    for (const bool shrink : {false, true}) {
      std::vector<int64_t> weights;
      int64_t weight = 1 << 10, sum = 0;
      for (int32_t i = 0; i < buckets; ++i) {
        weights.push_back(weight);
        sum += weight;
        weight = std::min<int64_t>(weight * halves / 2, int64_t{1} << 40);
      }
      if (shrink) std::reverse(weights.begin(), weights.end());
      Cuts ends;
      int64_t so_far = 0;
      for (const int64_t w : weights) {
        so_far += w;
        const auto end = static_cast<int32_t>((so_far * size + sum / 2) / sum);
        if (end > (ends.empty() ? 0 : ends.back())) ends.push_back(end);
      }
      ends.back() = static_cast<int32_t>(size);
      TryCuts(row, std::move(ends));
    }
  }
}

void PartitionSearch::ChangeRow(size_t row) {
  if (rows_[row].members.size() < 2) return;
  if (!search_.problem_.transfer(rows_[row].members[0]).mergeable) return;
  MergeRanges(row);
  HalveAll(row);
  SplitGeometrically(row);
}

void PartitionSearch::ShiftCut(size_t row, int32_t bucket) {
  for (const int32_t by : {1, 2, 4, 8, 16}) {
    for (const int32_t direction : {-1, 1}) {
      Cuts ends = rows_[row].ends;
      if (bucket + 1 >= static_cast<int32_t>(ends.size())) return;
      const int32_t cut = ends[Index(bucket)] + direction * by;
      if (cut <= Begin(rows_[row], bucket) || cut >= ends[Index(bucket) + 1]) continue;
      ends[Index(bucket)] = cut;
      TryCuts(row, std::move(ends));
    }
  }
}

void PartitionSearch::SplitBucket(size_t row, int32_t bucket) {
  const int32_t begin = Begin(rows_[row], bucket);
  const int32_t size = rows_[row].ends[Index(bucket)] - begin;
  int32_t last = 0;
  for (const int32_t at : {1, 2, size / 4, size / 2, 3 * size / 4, size - 2, size - 1}) {
    if (at <= last || at >= size) continue;
    last = at;
    Cuts ends = rows_[row].ends;
    ends.insert(ends.begin() + bucket, begin + at);
    if (TryCuts(row, std::move(ends))) return;
  }
}

void PartitionSearch::ChangeForm(size_t row, int32_t bucket) {
  const int32_t begin = Begin(rows_[row], bucket);
  if (rows_[row].ends[Index(bucket)] - begin < 2) return;
  Form& form = form_of_[Index(rows_[row].members[Index(begin)])];
  for (const Form other : {Form::kGrouped, Form::kPackedOnCompute, Form::kPackedOnComm}) {
    if (other == form || search_.Spent()) continue;
    const Form before = std::exchange(form, other);
    if (Try(settings_)) {
      improved_ = true;
    } else {
      form = before;
    }
  }
}

void PartitionSearch::ChangeBucket(size_t row, int32_t bucket) {
  const auto size = [&] { return static_cast<int32_t>(rows_[row].ends.size()); };
  if (bucket >= size()) return;
  if (bucket + 1 < size()) {
    Cuts ends = rows_[row].ends;
    ends.erase(ends.begin() + bucket);
    if (TryCuts(row, std::move(ends))) return;
    ShiftCut(row, bucket);
  }
  if (bucket < size()) SplitBucket(row, bucket);
  if (bucket < size()) ChangeForm(row, bucket);
}

void PartitionSearch::ChangeSettings() {
  for (const Knob& knob : search_.knobs_) {
    for (const int64_t value : knob.values) {
      if (search_.Spent()) return;
      Settings settings = settings_;
      knob.set(settings, value);
      if (settings == settings_ || !Try(settings)) continue;
      settings_ = settings;
      improved_ = true;
    }
  }
}

// A cut, a bucket's form or a knob.
void PartitionSearch::ChangeSomething(std::mt19937_64& random) {
  const auto below = [&](size_t bound) { return random() % bound; };
  const size_t what = below(8);
  if (what >= 5 || rows_to_cut_.empty()) {
    const Knob& knob = search_.knobs_[below(search_.knobs_.size())];
    knob.set(settings_, knob.values[below(knob.values.size())]);
    return;
  }
  const size_t at_row = rows_to_cut_[below(rows_to_cut_.size())];
  Row& row = rows_[at_row];
  const size_t bucket = below(row.ends.size());
  if (what == 0) {
    form_of_[Index(row.members[Index(Begin(row, static_cast<int32_t>(bucket)))])] =
        static_cast<Form>(1 + below(3));
  } else if (what <= 2 && bucket + 1 < row.ends.size()) {
    // Elsewhere between its neighbours; at one of them it is gone.
    const auto from = static_cast<size_t>(Begin(row, static_cast<int32_t>(bucket)));
    const auto until = static_cast<size_t>(row.ends[bucket + 1]);
    const size_t cut = from + below(until - from);
    row.ends[bucket] = static_cast<int32_t>(cut);
    if (cut == from) row.ends.erase(row.ends.begin() + static_cast<int64_t>(bucket));
  } else {
    const auto cut = static_cast<int32_t>(1 + below(row.members.size() - 1));
    const auto at = std::lower_bound(row.ends.begin(), row.ends.end(), cut);
    if (*at != cut) row.ends.insert(at, cut);
  }
  if (!rows_below_[at_row].empty() && random() % 2 == 0) AlignBelow(at_row);
}

void PartitionSearch::IteratedLocalSearch() {
  constexpr int kStray = 48;  // changes before it returns to what is best
  for (size_t row = 0; row < rows_.size(); ++row) {
    const std::vector<CollectiveId>& members = rows_[row].members;
    if (members.size() > 1 && search_.problem_.transfer(members[0]).mergeable) {
      rows_to_cut_.push_back(row);
    }
  }
  std::mt19937_64 random(1);  // the same numbers on any machine
  Replay(settings_);
  std::vector<Row> best_rows = rows_;
  std::vector<Form> best_forms = form_of_;
  Settings best_settings = settings_;
  Score best = score_;
  // Not for long without a gain; the larger the budget, the longer.
  int64_t gained_at = search_.placed_;
  for (int round = 0; !search_.IsTired(gained_at); ++round) {
    if (round % kStray == 0) {
      rows_ = best_rows;
      form_of_ = best_forms;
      settings_ = best_settings;
      score_ = best;
    }
    std::vector<Row> rows = rows_;
    std::vector<Form> forms = form_of_;
    const Settings settings = settings_;
    for (size_t changes = 1 + random() % 3; changes > 0; --changes) ChangeSomething(random);
    // Every other time a little worse will do.
    const Score held = score_;
    if (round / kStray % 2 == 1 && !held.over) score_.first += held.first / 1000;
    if (!Try(settings_)) {
      score_ = held;
      rows_ = std::move(rows);
      form_of_ = std::move(forms);
      settings_ = settings;
    } else if (score_ < best) {
      best = score_;
      gained_at = search_.placed_;
      best_rows = rows_;
      best_forms = form_of_;
      best_settings = settings_;
    }
  }
}

void PartitionSearch::Climb() {
  Replay(settings_);
  improved_ = true;
  for (int round = 0; improved_ && round < kMaxRounds && !search_.Spent(); ++round) {
    improved_ = false;
    if (round > 0) ChangeSettings();
    for (size_t row = 0; row < rows_.size(); ++row) ChangeRow(row);
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].members.size() < 2) continue;
      if (!search_.problem_.transfer(rows_[row].members[0]).mergeable) continue;
      const auto size = static_cast<int32_t>(rows_[row].ends.size());
      std::vector<int32_t> buckets(Index(size));
      std::iota(buckets.begin(), buckets.end(), 0);
      // Heads and tails of the step matter most.
      std::stable_sort(buckets.begin(), buckets.end(), [&](int32_t x, int32_t y) {
        return std::min(x, size - 1 - x) < std::min(y, size - 1 - y);
      });
      for (const int32_t bucket : buckets) {
        if (search_.Spent()) return;
        ChangeBucket(row, bucket);
      }
    }
    if (round == 0) ChangeSettings();
  }
}

}  // namespace bucketd::search
