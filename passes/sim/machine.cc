#include "passes/sim/machine.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <utility>

namespace bucketd::internal {

int64_t OneMachine(std::vector<Job> jobs) {
  std::erase_if(jobs, [](const Job& j) { return j.work <= 0; });
  std::sort(jobs.begin(), jobs.end());
  const auto shorter_tail = [](const Job& a, const Job& b) { return a.tail < b.tail; };
  std::priority_queue<Job, std::vector<Job>, decltype(shorter_tail)> ready(shorter_tail);
  int64_t now = 0;
  int64_t bound = 0;
  size_t next = 0;
  while (next < jobs.size() || !ready.empty()) {
    if (ready.empty()) now = std::max(now, jobs[next].head);
    while (next < jobs.size() && jobs[next].head <= now) ready.push(jobs[next++]);
    Job job = ready.top();
    ready.pop();
    const int64_t run = next < jobs.size() ? std::min(job.work, jobs[next].head - now) : job.work;
    now += run;
    job.work -= run;
    if (job.work > 0) {
      ready.push(job);
    } else {
      bound = std::max(bound, now + job.tail);
    }
  }
  return bound;
}

namespace {

// When the last batch ends, at the earliest, of jobs sorted by release. Whoever is released earlier
// than another can join that one's batch without delaying the end, so batches are intervals, and
//   end[j] = setup + work[1..j] + min over i < j of (max(end[i], release[j]) - work[1..i]).
// end grows with i, so of those not above release[j] the last is best; of the others a queue keeps
// the least end[i] - work[1..i].
int64_t EndOfBatches(const std::vector<std::pair<int64_t, int64_t>>& release_work, int64_t setup) {
  const size_t jobs = release_work.size();
  std::vector<int64_t> end(jobs + 1, 0), work(jobs + 1, 0);
  for (size_t j = 0; j < jobs; ++j) work[j + 1] = work[j] + release_work[j].second;
  size_t waiting = 0;  // last whose end is not above the release
  std::deque<size_t> least;
  for (size_t j = 1; j <= jobs; ++j) {
    const int64_t release = release_work[j - 1].first;
    while (waiting + 1 < j && end[waiting + 1] <= release) ++waiting;
    while (!least.empty() && least.front() <= waiting) least.pop_front();
    int64_t begin = release - work[waiting];
    if (!least.empty()) begin = std::min(begin, end[least.front()] - work[least.front()]);
    end[j] = setup + work[j] + begin;
    while (!least.empty() && end[least.back()] - work[least.back()] >= end[j] - work[j]) {
      least.pop_back();
    }
    least.push_back(j);
  }
  return end[jobs];
}

// The jobs whose tails are at least some length, for several lengths: none of them can be done
// later than that length before the end.
int64_t BatchesBeforeTails(std::vector<Job> jobs, int64_t setup) {
  constexpr size_t kLengths = 16;
  std::sort(jobs.begin(), jobs.end());
  std::vector<int64_t> tails;
  for (const Job& job : jobs) tails.push_back(job.tail);
  std::sort(tails.begin(), tails.end());
  tails.erase(std::unique(tails.begin(), tails.end()), tails.end());
  int64_t bound = 0;
  const size_t lengths = std::min(kLengths, tails.size());
  for (size_t k = 0; k < lengths; ++k) {
    const int64_t tail = tails[lengths == 1 ? 0 : k * (tails.size() - 1) / (lengths - 1)];
    std::vector<std::pair<int64_t, int64_t>> members;
    for (const Job& job : jobs) {
      if (job.tail >= tail) members.push_back({job.head, job.work});
    }
    bound = std::max(bound, EndOfBatches(members, setup) + tail);
  }
  return bound;
}

}  // namespace

int64_t BatchMachine(std::vector<Job> jobs, int64_t setup) {
  const int64_t forward = BatchesBeforeTails(jobs, setup);
  // Run backwards, a batch begins when all its tails are over.
  for (Job& job : jobs) std::swap(job.head, job.tail);
  return std::max(forward, BatchesBeforeTails(std::move(jobs), setup));
}

Backlog::Backlog(size_t most_jobs) {
  while (width_ < most_jobs + 1) width_ *= 2;
  nodes_.resize(2 * width_);
}

void Backlog::Add(int64_t head, int64_t work) {
  if (head > releases_.back()) {
    releases_.push_back(head);
    nodes_[width_ + releases_.size() - 1].best = head;
  }
  const auto after = std::upper_bound(releases_.begin(), releases_.end(), head);
  size_t at = width_ + static_cast<size_t>(after - releases_.begin()) - 1;
  nodes_[at].work += work;
  nodes_[at].best += work;
  for (at /= 2; at > 0; at /= 2) {
    const Node &left = nodes_[2 * at], &right = nodes_[2 * at + 1];
    nodes_[at].work = left.work + right.work;
    nodes_[at].best = std::max(left.best + right.work, right.best);
  }
}

}  // namespace bucketd::internal
