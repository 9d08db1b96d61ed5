#include "tests/server/simulation/threads.h"

#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "absl/debugging/symbolize.h"
#include <sys/mman.h>
#include <sys/time.h>

#include "server/base/log.h"

namespace bucketd::simulation {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kGuardBytes = 4096;
constexpr int kMostSeconds = 5;  // of CPU for one instant, which has milliseconds of work at most

Threads* the_threads = nullptr;

char* NewStack() {
  void* mapped = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED || mprotect(mapped, kGuardBytes, PROT_NONE) != 0) std::abort();
  return static_cast<char*>(mapped);
}

ucontext_t the_loop;

}  // namespace

struct Threads::Fiber {
  uint64_t number = 0;
  Process* process = nullptr;
  std::function<void()> body;
  char* stack = nullptr;
  ucontext_t context{};
  bool sleeps = false;
  bool done = false;
  bool is_joined = false;  // somebody takes its end note
  bool woken = false;
  uint64_t waits = 0;  // how often it has
};

Threads::Threads(uint64_t seed) : seed_(seed), random_(seed) {
  if (the_threads != nullptr) std::abort();
  the_threads = this;
  WatchTime(true);
}

Threads::~Threads() {
  WatchTime(false);
  the_threads = nullptr;
  for (char* stack : stacks_) munmap(stack, kStackBytes + kGuardBytes);
  for (const auto& [number, fiber] : fibers_) {
    if (fiber->stack != nullptr) munmap(fiber->stack, kStackBytes + kGuardBytes);
  }
}

Threads* Threads::current() { return the_threads; }

Threads::As::As(Process* process) : before_(std::exchange(the_threads->process_, process)) {}
Threads::As::~As() { the_threads->process_ = before_; }

// ---- what is to happen

size_t Threads::NewWhat(What what) {
  if (free_whats_.empty()) {
    whats_.push_back(std::move(what));
    return whats_.size() - 1;
  }
  const size_t place = free_whats_.back();
  free_whats_.pop_back();
  whats_[place] = std::move(what);
  return place;
}

void Threads::Push(Time when, size_t what) {
  events_.push_back({std::max(when, now_), random_.Next(), ++last_number_, what});
  std::push_heap(events_.begin(), events_.end(), Later());
}

void Threads::At(Time when, Process* process, std::function<void()> event) {
  Push(when, NewWhat({process, 0, 0, std::move(event)}));
}

void Threads::GoOnAt(Fiber& fiber, Time when) {
  Push(when, NewWhat({fiber.process, fiber.number, fiber.waits, nullptr}));
}

void Threads::RunUntil(Time end) {
  while (!events_.empty() && events_.front().when <= end) {
    std::pop_heap(events_.begin(), events_.end(), Later());
    const Event event = events_.back();
    events_.pop_back();
    now_ = event.when;
    Process* const process = whats_[event.what].process;
    const bool is_dead = process != nullptr && process->dead;
    if (process != nullptr && !is_dead && process->paused_until > now_) {
      Push(process->paused_until, event.what);
      continue;
    }
    const What what = std::exchange(whats_[event.what], {});
    free_whats_.push_back(event.what);
    const As as(process);
    if (what.fiber != 0) {
      const auto fiber = fibers_.find(what.fiber);
      if (fiber != fibers_.end() && fiber->second->waits == what.waits) Resume(*fiber->second);
    } else if (!is_dead) {
      what.run();
    }
  }
  now_ = std::max(now_, end);
}

void Threads::Asks(const char* what) {
  if (process_ == nullptr) return;
  process_->asked[process_->asked_in_all++ % process_->asked.size()] = what;
}

void Threads::WatchTime(bool watch) {
  struct sigaction action {};
  action.sa_handler = watch ? &Threads::Watch : SIG_DFL;
  action.sa_flags = SA_RESTART;
  const itimerval every{{watch ? 1 : 0, 0}, {watch ? 1 : 0, 0}};
  if (sigaction(SIGVTALRM, &action, nullptr) != 0) std::abort();
  if (setitimer(ITIMER_VIRTUAL, &every, nullptr) != 0) std::abort();
}

void Threads::Watch(int) {
  Threads& threads = *the_threads;
  threads.seconds_ =
      std::exchange(threads.seen_, threads.now_) == threads.now_ ? threads.seconds_ + 1 : 0;
  if (threads.seconds_ >= kMostSeconds) threads.Loops();
}

// It may have been in the middle of anything, with a lock of the C library: then this waits for it,
// and the alarm ends it.
void Threads::Loops() const {
  alarm(10);
  the_threads = nullptr;  // what follows takes real locks
  std::fprintf(stderr, "seed %llu: at %.6f s %s loops: %d s of CPU, and time has not moved\n",
               static_cast<unsigned long long>(seed_), std::chrono::duration<double>(now_).count(),
               process_ == nullptr ? "the world" : process_->name.c_str(), seconds_);
  if (process_ != nullptr) {
    std::fprintf(stderr, "process %d asked %llu times, the last ones:\n", process_->number,
                 static_cast<unsigned long long>(process_->asked_in_all));
    for (size_t k = 0; k < process_->asked.size(); ++k) {
      const char* what = process_->asked[(process_->asked_in_all + k) % process_->asked.size()];
      if (what != nullptr) std::fprintf(stderr, "  %s\n", what);
    }
  }
  std::fprintf(stderr, "it is in\n");
  std::array<void*, 40> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int k = 1; k < count; ++k) {
    std::array<char, 200> name{};
    // Of the call, not of where it returns to.
    const char* call = static_cast<const char*>(frames[static_cast<size_t>(k)]) - 1;
    if (absl::Symbolize(call, name.data(), name.size())) {
      std::fprintf(stderr, "  %s\n", name.data());
    }
  }
  std::abort();
}

// ---- threads

Threads::Fiber* Threads::NewFiber(Process* process, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->number = ++last_number_;
  fiber->process = process;
  fiber->body = std::move(body);
  if (stacks_.empty()) stacks_.push_back(NewStack());
  fiber->stack = stacks_.back();
  stacks_.pop_back();
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack + kGuardBytes;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = &the_loop;
  makecontext(&fiber->context, &Threads::Entry, 0);
  Fiber* raw = fiber.get();
  fibers_.emplace(raw->number, std::move(fiber));
  GoOnAt(*raw, now_);
  return raw;
}

void Threads::Entry() {
  Fiber& fiber = *the_threads->running_;
  fiber.body();
  fiber.body = nullptr;
  fiber.done = true;
  the_threads->Wake(&fiber, Whom::kAll);
}

void Threads::Spawn(Process* process, std::function<void()> body) {
  NewFiber(process, std::move(body));
}

uint64_t Threads::Start(std::function<void()> body) {
  Fiber* fiber = NewFiber(process_, std::move(body));
  fiber->is_joined = true;
  return fiber->number;
}

void Threads::Join(uint64_t thread) {
  Fiber* fiber = fibers_.at(thread).get();
  while (!fiber->done) WaitOn(fiber);
  fibers_.erase(thread);
}

void Threads::Resume(Fiber& fiber) {
  ++fiber.waits;
  running_ = &fiber;
  swapcontext(&the_loop, &fiber.context);
  running_ = nullptr;
  if (!fiber.done) return;
  stacks_.push_back(std::exchange(fiber.stack, nullptr));
  if (!fiber.is_joined) fibers_.erase(fiber.number);
}

void Threads::GiveWay() {
  // What a real thread has of its own stays with it: whom its log lines are about.
  static const CallIds nobody;
  const WorkFor none(nobody);
  Fiber& fiber = *running_;
  swapcontext(&fiber.context, &the_loop);
}

bool Threads::WaitOn(const void* what, Time until) {
  if (running_ == nullptr) {
    std::fprintf(stderr, "an event of %s waits for a thread: on a server that would be gRPC's\n",
                 process_ == nullptr ? "the world" : process_->name.c_str());
    std::abort();
  }
  Fiber& fiber = *running_;
  waiting_[what].push_back(&fiber);
  fiber.woken = false;
  if (until != kNever) GoOnAt(fiber, std::max(until, now_));
  GiveWay();
  if (fiber.woken) return true;
  const auto others = waiting_.find(what);
  std::erase(others->second, &fiber);
  if (others->second.empty()) waiting_.erase(others);
  return false;
}

void Threads::Wake(const void* what, Whom whom) {
  const auto found = waiting_.find(what);
  if (found == waiting_.end()) return;
  do {
    Fiber& fiber = *found->second.front();
    found->second.pop_front();
    fiber.woken = true;
    GoOnAt(fiber, now_);
  } while (whom == Whom::kAll && !found->second.empty());
  if (found->second.empty()) waiting_.erase(found);
}

void Threads::Sleep(Time duration) {
  Fiber& fiber = *running_;
  if (fiber.process != nullptr && fiber.process->dead) return;
  GoOnAt(fiber, now_ + duration);
  fiber.sleeps = true;
  GiveWay();
  fiber.sleeps = false;
}

void Threads::Die(Process& process) {
  process.dead = true;
  for (const auto& [number, fiber] : fibers_) {
    if (fiber->process == &process && fiber->sleeps) GoOnAt(*fiber, now_);
  }
}

}  // namespace bucketd::simulation
