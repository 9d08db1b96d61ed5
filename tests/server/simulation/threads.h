// Threads of several processes on one real thread, in virtual time. Whoever waits (for a lock, a
// condition, a point in time) gives way to the next one; time moves when nobody can go on. What is
// due at the same time runs in an order that the seed decides, and the same seed gives the same
// order.
//
// The code that is run knows nothing of it: interposed.cc puts it under the clock, pthread's
// threads and conditions, and absl's locks. Nobody is interrupted but where he waits: what a data
// race would do is the thread sanitizer's to find.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tests/server/simulation/random.h"

namespace bucketd::simulation {

// Since the world began.
using Time = std::chrono::nanoseconds;
inline constexpr Time kNever = Time::max();

// A machine with one process of it: its clocks, and whether it lives.
struct Process {
  std::string name;
  int number = 0;
  Time steady_ahead{0};  // of the virtual time
  Time wall_ahead{0};
  Time paused_until{0};
  // Its threads go on, to their ends; what they say outside of it is not heard any more.
  bool dead = false;
  // What it asked of the store and of the wires, the last ones; for who reads of a loop.
  std::array<const char*, 8> asked{};
  uint64_t asked_in_all = 0;
};

class Threads {
 public:
  explicit Threads(uint64_t seed);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // Null: there is no simulation.
  static Threads* current();

  Time now() const { return now_; }
  // Whose code runs; null: the world's.
  Process* process() const { return process_; }
  // Whether whoever calls may wait. Events may not: they are what comes from the network.
  bool in_thread() const { return running_ != nullptr; }

  // An event of a process is delayed while that is paused, and does not happen once it is dead.
  void At(Time when, Process* process, std::function<void()> event);
  // May wait. Of a process that has died it runs all the same.
  void Spawn(Process* process, std::function<void()> body);
  // Whoever sleeps in it wakes.
  void Die(Process& process);
  // Until that time, or until nothing is left to happen.
  void RunUntil(Time end);

  // The process that runs asks this, a literal, of the store or of a wire.
  void Asks(const char* what);

  // In a thread. Returns early if its process dies.
  void Sleep(Time duration);

  // ---- for interposed.cc
  // Gives way until Wake(`what`); false: `until`, of the virtual time, came first.
  bool WaitOn(const void* what, Time until = kNever);
  enum class Whom { kOne, kAll };
  void Wake(const void* what, Whom whom);
  uint64_t Start(std::function<void()> body);  // a thread of the process that runs
  void Join(uint64_t thread);
  // What runs in `process` for a while: its clocks count.
  class As {
   public:
    explicit As(Process* process);
    ~As();
    As(const As&) = delete;
    As& operator=(const As&) = delete;

   private:
    Process* const before_;
  };

 private:
  struct Fiber;
  // What is to happen, in a heap: the order alone, what it is stands in `whats_`.
  struct Event {
    Time when;
    uint64_t order;  // random
    uint64_t number;
    size_t what;
  };
  struct What {
    Process* process = nullptr;
    uint64_t fiber = 0;  // goes on, if it still waits as it did then; 0: none
    uint64_t waits = 0;  // of it
    std::function<void()> run;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return std::tie(a.when, a.order, a.number) > std::tie(b.when, b.order, b.number);
    }
  };

  static void Entry();
  static void WatchTime(bool watch);
  // On a signal, after each second of CPU: who needs many of them for one instant never ends.
  static void Watch(int);
  [[noreturn]] void Loops() const;
  Fiber* NewFiber(Process* process, std::function<void()> body);
  void Push(Time when, size_t what);
  size_t NewWhat(What what);
  void GoOnAt(Fiber& fiber, Time when);
  void Resume(Fiber& fiber);
  void GiveWay();

  const uint64_t seed_;
  Time now_{0};
  Time seen_{-1};    // when time was looked at
  int seconds_ = 0;  // of CPU, since it moved
  Random random_;
  uint64_t last_number_ = 0;
  Process* process_ = nullptr;
  Fiber* running_ = nullptr;
  std::vector<Event> events_;  // a heap
  std::vector<What> whats_;
  std::vector<size_t> free_whats_;
  std::map<uint64_t, std::unique_ptr<Fiber>> fibers_;  // by number
  std::unordered_map<const void*, std::deque<Fiber*>> waiting_;
  std::vector<char*> stacks_;  // free
};

}  // namespace bucketd::simulation
