#include "server/base/worker_pool.h"

namespace bucketd {
namespace {

// The first behind `last` that is ready, by name and then from the beginning again. Those that are
// not ready are few: they run.
template <typename Part, typename IsReady>
auto NextBehind(std::map<std::string, Part>& parts, const std::string& last, IsReady is_ready) {
  auto at = parts.upper_bound(last);
  for (size_t seen = 0; seen < parts.size(); ++seen, ++at) {
    if (at == parts.end()) at = parts.begin();
    if (is_ready(at->second)) return at;
  }
  return parts.end();
}

}  // namespace

WorkerPool::WorkerPool(int threads, int max_queued, int most_of_one)
    : threads_wanted_(static_cast<size_t>(threads)),
      max_queued_(static_cast<size_t>(max_queued)),
      most_of_one_(static_cast<size_t>(most_of_one == 0 ? threads : most_of_one)) {
  threads_.reserve(threads_wanted_);
  for (size_t i = 0; i < threads_wanted_; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() { Stop(); }

bool WorkerPool::TrySubmit(std::function<void()> job) {
  Work work{.job = std::move(job)}, displaced;
  const bool taken = Enqueue(work, displaced);
  if (displaced.refused != nullptr) displaced.refused();
  return taken;
}

void WorkerPool::Submit(const Shares::Path& share, std::function<void()> job,
                        std::function<void()> refused) {
  Work work{.job = std::move(job), .refused = std::move(refused)}, displaced;
  if (!share.empty()) work.share = share;
  if (!Enqueue(work, displaced)) work.refused();
  if (displaced.refused != nullptr) displaced.refused();
}

bool WorkerPool::Enqueue(Work& work, Work& displaced) {
  {
    const absl::MutexLock lock(&mutex_);
    if (stopped_) return false;
    // Jobs that an idle thread is about to take do not count as waiting.
    if (running_ + queue_.size() >= threads_wanted_ + max_queued_) {
      const Id gives_way = shares_.GivesWayTo(work.share);
      if (gives_way == 0) return false;
      displaced = TakeOut(gives_way);
    }
    const Id id = ++last_id_;
    lines_[work.share[0]].waiting[work.share[1]].insert(id);
    if (work.refused != nullptr) shares_.Add(work.share, id);
    queue_.emplace(id, std::move(work));
  }
  changed_.Signal();
  return true;
}

WorkerPool::Work WorkerPool::TakeOut(Id id) {
  const auto at = queue_.find(id);
  Work work = std::move(at->second);
  queue_.erase(at);
  const auto line = lines_.find(work.share[0]);
  const auto waiting = line->second.waiting.find(work.share[1]);
  waiting->second.erase(id);
  if (waiting->second.empty()) line->second.waiting.erase(waiting);
  if (line->second.waiting.empty() && line->second.running == 0) lines_.erase(line);
  if (work.refused != nullptr) shares_.Remove(work.share, id);
  return work;
}

WorkerPool::Id WorkerPool::Next() {
  const auto line = NextBehind(lines_, last_, [this](const Line& its) {
    return !its.waiting.empty() && its.running < most_of_one_;
  });
  if (line == lines_.end()) return 0;
  last_ = line->first;
  const auto part =
      NextBehind(line->second.waiting, line->second.last, [](const auto&) { return true; });
  line->second.last = part->first;
  return *part->second.begin();
}

void WorkerPool::Stop() {
  std::map<Id, Work> dropped;
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
    dropped.swap(queue_);
    lines_.clear();
  }
  changed_.SignalAll();
  threads_.clear();  // joins
}

void WorkerPool::Run() {
  mutex_.Lock();
  while (!stopped_) {
    const Id next = Next();
    if (next == 0) {
      changed_.Wait(&mutex_);
      continue;
    }
    const std::string outer = last_;
    ++lines_[outer].running;
    Work work = TakeOut(next);
    ++running_;
    mutex_.Unlock();
    work.job();
    work = {};
    mutex_.Lock();
    --running_;
    const auto line = lines_.find(outer);
    if (line != lines_.end() && --line->second.running == 0 && line->second.waiting.empty()) {
      lines_.erase(line);
    }
  }
  mutex_.Unlock();
}

}  // namespace bucketd
