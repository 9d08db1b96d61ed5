// Bounds for one machine that runs jobs one at a time: what the lower bounds are made of.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bucketd::internal {

// Cannot begin before `head`, takes `work`, and `tail` passes after its end.
struct Job {
  int64_t head = 0, work = 0, tail = 0;
  friend auto operator<=>(const Job&, const Job&) = default;
};

// Jackson's preemptive bound: always run the released job with the longest tail. No schedule of
// these jobs on one machine ends earlier. O(jobs log jobs).
int64_t OneMachine(std::vector<Job> jobs);

// Jobs run in batches: one begins when all its jobs are released and takes `setup` and the work of
// its jobs; all its tails begin when it ends. No schedule ends earlier. O(jobs log jobs).
int64_t BatchMachine(std::vector<Job> jobs, int64_t setup);

// Jobs of one machine that become known one by one, in any order: when all are done at the
// earliest. A lower bound; exact where every job is released no earlier than those before it.
class Backlog {
 public:
  explicit Backlog(size_t most_jobs);
  void Add(int64_t head, int64_t work);  // REQUIRES: head >= 0. O(log jobs)
  int64_t end() const { return nodes_[1].best; }

 private:
  // Of a range of releases, ascending: work of the jobs that count from one of them on and not from
  // the next range; the latest release plus the work from there on.
  struct Node {
    int64_t work = 0, best = 0;
  };
  size_t width_ = 1;
  std::vector<Node> nodes_;
  std::vector<int64_t> releases_ = {0};
};

}  // namespace bucketd::internal
