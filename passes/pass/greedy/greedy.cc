#include "passes/pass/greedy/greedy.h"

#include <utility>

#include "passes/base/index.h"

namespace bucketd {
namespace {

using List = std::vector<const GreedyCandidate*>;

// What is worked off as one: runs of one key, or all of a key, by key.
std::vector<List> ListsOf(const std::vector<GreedyCandidate>& candidates,
                          const GreedyRules& rules) {
  std::vector<List> lists;
  for (const GreedyCandidate& candidate : candidates) {
    size_t at = Index(candidate.key);
    if (rules.adjacent_only) {
      const bool ends = lists.empty() || lists.back().front()->key != candidate.key;
      at = lists.size() - (ends ? 0 : 1);
    }
    if (at >= lists.size()) lists.resize(at + 1);
    lists[at].push_back(&candidate);
  }
  return lists;
}

class Greedy {
 public:
  Greedy(const GreedyRules& rules, QuotientDag& quotient) : rules_(rules), quotient_(quotient) {}

  // One of ListsOf().
  void Run(List list) {
    index_ = 0;
    while (!list.empty() && !out_.out_of_work) {
      List deferred;
      for (const GreedyCandidate* candidate : list) {
        out_.out_of_work = out_.out_of_work || quotient_.work() > rules_.max_work;
        if (out_.out_of_work) break;
        if (!quotient_.Joins(candidate->start_item)) {
          ++open_.refused;
          deferred.push_back(candidate);
          continue;
        }
        CloseBefore(*candidate);
        Add(*candidate);
      }
      Close(false, false);
      out_.refused += static_cast<int32_t>(deferred.size());
      if (rules_.drop_dependent) deferred.clear();
      list = std::move(deferred);
    }
  }

  GreedyResult Result() && { return std::move(out_); }

 private:
  void CloseBefore(const GreedyCandidate& candidate) {
    if (open_.members.empty()) return;
    const bool full = candidate.bytes > open_.cap - open_.bytes;
    const bool far =
        rules_.max_topo_span >= 0 && candidate.position - first_position_ > rules_.max_topo_span;
    if (full || far) Close(full, far);
  }

  void Add(const GreedyCandidate& candidate) {
    if (open_.members.empty()) {
      open_.key = candidate.key;
      open_.cap = rules_.cap(candidate.key, rules_.adjacent_only ? 0 : index_);
      first_position_ = candidate.position;
    }
    quotient_.Add(candidate.start_item, candidate.wait_item);
    open_.members.push_back(candidate.collective);
    open_.bytes += candidate.bytes;
    open_.span = candidate.position - first_position_;
  }

  void Close(bool by_bytes, bool by_span) {
    if (!open_.members.empty()) {
      quotient_.Close(!rules_.drop_dependent);
      ++index_;
    }
    if (open_.members.size() > 1) {
      open_.by_bytes = by_bytes;
      open_.by_span = by_span;
      out_.buckets.push_back(std::move(open_));
    }
    open_ = {};
  }

  const GreedyRules& rules_;
  QuotientDag& quotient_;
  GreedyResult out_;
  GreedyBucket open_;
  int32_t index_ = 0, first_position_ = 0;
};

}  // namespace

GreedyResult FindGreedyBuckets(absl::Span<const std::vector<GreedyCandidate>> stages,
                               const GreedyRules& rules, QuotientDag& quotient) {
  Greedy greedy(rules, quotient);
  for (const std::vector<GreedyCandidate>& candidates : stages) {
    for (List& list : ListsOf(candidates, rules)) greedy.Run(std::move(list));
  }
  return std::move(greedy).Result();
}

}  // namespace bucketd
