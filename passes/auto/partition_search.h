// Local search over which collectives share a bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/auto/search.h"

namespace bucketd::search {

// The collectives of each key stand in a row, in the order in which a plan launched them; a
// partition cuts each row into buckets. Moves shift, remove or add cuts, or change a bucket's form;
// the first that is better is taken.
class PartitionSearch {
 public:
  // Starts from these batches, in the order of their launches. REQUIRES: every collective that is
  // not inline is in one of them. The search outlives it.
  PartitionSearch(Search& search, const std::vector<Batch>& batches, const Settings& settings);

  // The buckets as they stand, with the given settings.
  Score Replay(const Settings& settings);

  // Until no move is better or the search's budget is spent.
  void Climb();

 private:
  using Cuts = std::vector<int32_t>;  // ends of buckets, ascending; the last is the row's length
  struct Row {
    std::vector<CollectiveId> members;
    Cuts ends;
    friend bool operator==(const Row&, const Row&) = default;
  };

  void AddBucket(Row& row, std::vector<CollectiveId> members, Form form);
  bool Try(const Settings& settings);
  bool TryCuts(size_t row, Cuts ends);
  bool TryAligned(size_t row);
  void AlignBelow(size_t row);
  void Align(size_t row, size_t below);
  void FindRowsBelow();
  CollectiveId NextBelow(const Transfer& t) const;
  bool MergeEvery(size_t row, int32_t from, int32_t to, int32_t by);
  bool MayMerge(const Row& row) const;
  void MergeRanges(size_t row);
  void ChangeBucket(size_t row, int32_t bucket);
  void ShiftCut(size_t row, int32_t bucket);
  void SplitBucket(size_t row, int32_t bucket);
  void ChangeForm(size_t row, int32_t bucket);
  void ChangeSettings();
  int32_t Begin(const Row& row, int32_t bucket) const {
    return bucket == 0 ? 0 : row.ends[Index(bucket) - 1];
  }

  Search& search_;
  Settings settings_;
  std::vector<Row> rows_;
  std::vector<std::vector<size_t>> rows_below_;  // of a row: reductions of its results
  std::vector<size_t> downwards_;                // rows that have such, highest level first
  std::vector<int32_t> place_;                   // of a collective in its row
  std::vector<CollectiveId> next_;               // the reduction right below a collective; -1: none
  std::vector<Form> form_of_;                    // of the bucket that begins with this collective
  Partition partition_;
  Score score_;
  bool improved_ = false;
};

}  // namespace bucketd::search
