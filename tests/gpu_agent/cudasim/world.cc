#include "tests/gpu_agent/cudasim/world.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/time/clock.h"

#include "tests/gpu_agent/cudasim/nccl.h"

namespace bucketd::agent::sim {
namespace {

std::atomic<World*> current = nullptr;

}  // namespace

World::World(const Options& options)
    : options_(options), random_(options.seed), memory_(findings_) {
  nccl_ = std::make_unique<Nccl>(*this);
  current = this;
}

World::~World() {
  ends_ = true;
  while (guests_ > 0) absl::SleepFor(absl::Microseconds(50));
  current = nullptr;
}

World* World::now() { return current; }

std::shared_ptr<const NcclApi> World::nccl_api() const { return NcclTable(); }

void World::KillRank(int rank, bool peers_hear) {
  const std::lock_guard lock(mutex_);
  nccl_->Kill(rank, peers_hear);
}

void World::Drain() {
  const std::lock_guard lock(mutex_);
  while (Step()) {
  }
}

std::vector<std::string> World::findings() {
  const std::lock_guard lock(mutex_);
  return findings_.all();
}

std::set<int> World::contexts() {
  const std::lock_guard lock(mutex_);
  return contexts_;
}

std::set<int> World::priorities() {
  const std::lock_guard lock(mutex_);
  std::set<int> found;
  for (const auto& stream : streams_) found.insert(stream->priority);
  return found;
}

size_t World::allocations() {
  const std::lock_guard lock(mutex_);
  return memory_.live();
}

size_t World::events() {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

size_t World::communicators() {
  const std::lock_guard lock(mutex_);
  return nccl_->living();
}

int World::events_made(int gpu) {
  const std::lock_guard lock(mutex_);
  return events_made_[gpu];
}

int World::tables_made(int gpu) {
  const std::lock_guard lock(mutex_);
  return tables_made_[gpu];
}

int64_t World::launches() {
  const std::lock_guard lock(mutex_);
  return nccl_->launched();
}

std::vector<KernelRun> World::kernels() {
  const std::lock_guard lock(mutex_);
  return nccl_->kernels();
}

void World::EndContext(int device) {
  Drain();
  const bool streams = std::any_of(streams_.begin(), streams_.end(), [device](const auto& stream) {
    return stream->device == device && !stream->destroyed;
  });
  const bool events = std::any_of(events_.begin(), events_.end(), [device](const auto& event) {
    return event.second->device == device;
  });
  if (streams || events || memory_.bytes_on(device) > 0) {
    findings_.Add("a context ends under what lives in it");
  }
  contexts_.erase(device);
}

void World::OnStep(int64_t step, std::function<void()> then) {
  const std::lock_guard lock(mutex_);
  on_step_ = step;
  then_ = std::move(then);
}

SimStream* World::NewStream(int device) {
  auto stream = std::make_unique<SimStream>();
  stream->id = streams_.size();
  stream->device = device;
  streams_.push_back(std::move(stream));
  return streams_.back().get();
}

SimStream* World::Of(cudaStream_t stream) {
  for (const auto& known : streams_) {
    if (reinterpret_cast<cudaStream_t>(known.get()) == stream && !known->destroyed) {
      return known.get();
    }
  }
  findings_.Add("a call with a stream that is none");
  return nullptr;
}

SimEvent* World::NewEvent(int device) {
  auto event = std::make_unique<SimEvent>();
  event->device = device;
  SimEvent* made = event.get();
  events_[made] = std::move(event);
  return made;
}

SimEvent* World::Of(cudaEvent_t event) {
  const auto found = events_.find(event);
  if (found != events_.end()) return found->second.get();
  findings_.Add("a call with an event that is none");
  return nullptr;
}

bool World::Forget(cudaEvent_t event) { return events_.erase(event) == 1; }

void World::Enqueue(SimStream& stream, std::string what, std::function<void(const Toucher&)> run,
                    std::function<bool()> ready) {
  if (stream.capture != nullptr) {
    return EnqueueAnew(stream, [this, what, run, ready](SimStream& replayed) {
      Enqueue(replayed, what, run, ready);
    });
  }
  stream.ops.push_back({std::move(what), host_, std::move(ready), std::move(run)});
}

void World::Advance() {
  ++steps_;
  if (steps_ == on_step_ && then_ != nullptr) std::exchange(then_, nullptr)();
  nccl_->GoOnWithSplits();
  for (uint64_t k = random_() % options_.pace; k > 0; --k) Step();
}

// One op of one stream, chosen among those that can go on.
// The devices go on meanwhile.
void World::Pass(int64_t ns) {
  const int64_t until = now_ns_ + ns;
  while (now_ns_ < until && Step()) {
  }
  now_ns_ = std::max(now_ns_, until);
}

bool World::Step() {
  std::vector<SimStream*> able;
  for (const auto& stream : streams_) {
    if (stream->ops.empty()) continue;
    const auto& ready = stream->ops.front().ready;
    if (ready == nullptr || ready()) able.push_back(stream.get());
  }
  if (able.empty()) {
    const bool shut = std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
      return !stream->ops.empty() && stream->ops.front().what == kGate;  // the host goes on
    });
    if (!shut) nccl_->FindDeadlock();
    return false;
  }
  SimStream& stream = *able[random_() % able.size()];
  Op op = std::move(stream.ops.front());
  stream.ops.pop_front();
  now_ns_ += static_cast<int64_t>(500 + random_() % 5000);
  stream.clock.Join(op.issued);
  stream.clock.Tick(stream.id);
  op.run({op.what, stream.id, stream.device, &stream.clock});
  return true;
}

}  // namespace bucketd::agent::sim
