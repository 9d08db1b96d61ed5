// Local search over which collectives share a bucket.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "passes/auto/search.h"

namespace bucketd::search {

// The collectives of each key stand in a row, in the order in which a plan launched them; a
// partition cuts each row into buckets. Moves shift, remove or add cuts, or change a bucket's form;
// the first that is better is taken.
class PartitionSearch {
 public:
  // Starts from these batches, in the order of their launches. The search outlives it.
  PartitionSearch(Search& search, const std::vector<Batch>& batches, const Settings& settings);

  // The buckets as they stand, with the given settings.
  Score Replay(const Settings& settings);

  // Until no move is better or the search's budget is spent.
  void Climb();

  // Several changes at a time, at random but the same in every run, until the budget is spent or a
  // quarter of it has gained nothing.
  void IteratedLocalSearch();

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
  bool MergeEvery(size_t row, int32_t from, int32_t to, int32_t by);
  void MergeRanges(size_t row);
  void HalveAll(size_t row);
  void SplitGeometrically(size_t row);
  void ChangeRow(size_t row);
  void ChangeBucket(size_t row, int32_t bucket);
  void ShiftCut(size_t row, int32_t bucket);
  void SplitBucket(size_t row, int32_t bucket);
  void ChangeForm(size_t row, int32_t bucket);
  void ChangeSettings();
  void ChangeSomething(std::mt19937_64& random);
  int32_t Begin(const Row& row, int32_t bucket) const {
    return bucket == 0 ? 0 : row.ends[Index(bucket) - 1];
  }

  Search& search_;
  Settings settings_;
  std::vector<Row> rows_;
  std::vector<std::vector<size_t>> rows_below_;  // of a row: reductions of its results
  std::vector<size_t> downwards_;                // rows that have such, highest level first
  std::vector<int32_t> place_;                   // of a collective in its row
  std::vector<Form> form_of_;                    // of the bucket that begins with this collective
  Partition partition_;
  Score score_;
  bool improved_ = false;
  std::vector<size_t> rows_to_cut_;  // of which IteratedLocalSearch() changes the buckets
};

}  // namespace bucketd::search
