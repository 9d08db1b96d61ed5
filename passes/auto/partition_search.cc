#include "passes/auto/partition_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bucketd::search {
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

// The first of the reductions right below one. Few leaders stand below: else it were no sink.
CollectiveId PartitionSearch::NextBelow(const Transfer& t) const {
  if (t.use != Use::kSink) return -1;
  CollectiveId next = -1;
  std::vector<LeaderId> open = {t.wait};
  while (!open.empty()) {
    const LeaderId l = open.back();
    open.pop_back();
    for (const LeaderId y : search_.problem_.after.of(l)) {
      const CollectiveId c = search_.problem_.start_of[Index(y)];
      if (c < 0) {
        open.push_back(y);
      } else if (next < 0 || c < next) {
        next = c;
      }
    }
  }
  return next;
}

void PartitionSearch::FindRowsBelow() {
  const Problem& problem = search_.problem_;
  rows_below_.resize(rows_.size());
  place_.assign(form_of_.size(), -1);
  next_ = place_;
  for (size_t row = 0; row < rows_.size(); ++row) {
    std::vector<size_t>& below = rows_below_[row];
    for (size_t i = 0; i < rows_[row].members.size(); ++i) {
      const CollectiveId c = rows_[row].members[i];
      place_[Index(c)] = static_cast<int32_t>(i);
      const CollectiveId next = next_[Index(c)] = NextBelow(problem.transfer(c));
      if (next < 0 || !problem.transfer(next).mergeable) continue;
      below.push_back(Index(problem.transfer(next).key));
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
    const CollectiveId next = next_[Index(rows_[row].members[Index(end)])];
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
  for (const int32_t by : kRuns) MergeEvery(row, 0, size(), by);
  for (const int32_t parts : kStretches) {
    for (int32_t part = 0; part < parts; ++part) {
      const int32_t from = size() * part / parts, to = size() * (part + 1) / parts;
      if (to - from < 2) continue;
      MergeEvery(row, from, to, 2);
      const int32_t still = std::min(to, size());
      if (still - from >= 2) MergeEvery(row, from, still, still - from);
    }
  }
}

bool PartitionSearch::MayMerge(const Row& row) const {
  return row.members.size() > 1 && search_.problem_.transfer(row.members[0]).mergeable;
}

void PartitionSearch::ShiftCut(size_t row, int32_t bucket) {
  for (const int32_t by : kShifts) {
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

void PartitionSearch::Climb() {
  Replay(settings_);
  improved_ = true;
  for (int round = 0; improved_ && round < kBucketRounds && !search_.Spent(); ++round) {
    improved_ = false;
    if (round > 0) ChangeSettings();
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (MayMerge(rows_[row])) MergeRanges(row);
    }
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (!MayMerge(rows_[row])) continue;
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
