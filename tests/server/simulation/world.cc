#include "tests/server/simulation/world.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bucketd::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

constexpr milliseconds kLameDuck{500};
constexpr std::chrono::seconds kSilence{8};  // until a client takes its connection for broken
constexpr std::chrono::seconds kDrain{15};

}  // namespace

World::World(uint64_t seed, int replicas, int traced_job)
    : threads(seed),
      random(seed ^ 0x5eed),
      history(threads, traced_job),
      engine(threads, history, seed ^ 0xe2612e),
      network(*this),
      slots_(static_cast<size_t>(replicas)) {}

void World::KillAll() {
  over_ = true;
  for (int replica = 0; replica < replicas(); ++replica) Kill(replica, kNever);
  threads.RunUntil(threads.now() + kDrain);
}

std::string World::AddressOf(int replica) const { return absl::StrCat("replica-", replica); }

int World::ReplicaOf(const Process& process) const {
  for (int replica = 0; replica < replicas(); ++replica) {
    if (slots_[Index(replica)].process == &process) return replica;
  }
  return -1;
}

Node* World::Serving(int replica) const {
  const Slot& slot = slots_[Index(replica)];
  return slot.serving ? slot.node.get() : nullptr;
}

Node* World::Serving(const std::string& address) const {
  for (int replica = 0; replica < replicas(); ++replica) {
    if (AddressOf(replica) == address) return Serving(replica);
  }
  return nullptr;
}

Node* World::NodeOf(const Process& process) const {
  const int replica = ReplicaOf(process);
  return replica < 0 ? nullptr : slots_[Index(replica)].node.get();
}

void World::Deliver(Process& process, std::function<void()> run) {
  if (process.dead) return;
  if (process.paused_until > threads.now()) {
    threads.At(process.paused_until, &process, std::move(run));
    return;
  }
  const Threads::As as(&process);
  run();
}

// ---- what happens to replicas

void World::Start(int replica) {
  if (over_) return;
  Slot& slot = slots_[Index(replica)];
  auto process = std::make_unique<Process>();
  process->name = AddressOf(replica);
  process->number = static_cast<int>(processes_.size());
  process->steady_ahead = minutes(random.Between(0, 5000));
  process->wall_ahead = minutes(random.Between(-60, 60));
  slot = Slot{};
  slot.process = process.get();
  processes_.push_back(std::move(process));
  history.Note("starts", {.rank = replica});
  threads.Spawn(slot.process, [this, replica, started = slot.process] {
    auto node = std::make_unique<Node>(*this, *started, AddressOf(replica));
    Slot& mine = slots_[Index(replica)];
    node->Start();
    if (started->dead) {  // while it started: its place may be another one's by now
      node->Stop();
      return;
    }
    mine.node = std::move(node);
    mine.serving = true;
  });
}

void World::BreakCalls(int replica, const char* why) {
  const std::map<uint64_t, RankCallPtr> calls = std::exchange(slots_[Index(replica)].calls, {});
  for (const auto& [id, call] : calls) {
    threads.At(threads.now() + milliseconds(1), nullptr, [call, why] {
      if (!std::exchange(call->ended, true)) call->done(absl::UnavailableError(why));
    });
  }
}

void World::Kill(const Process& process, Time down) {
  const int replica = ReplicaOf(process);
  if (replica >= 0) Kill(replica, down);
}

void World::Kill(int replica, Time down) {
  Slot& slot = slots_[Index(replica)];
  if (slot.process == nullptr) return;
  history.Note("dies", {.rank = replica});
  Process& process = *slot.process;
  slot.serving = false;
  threads.Die(process);
  BreakCalls(replica, "connection reset");
  network.Died(process);
  // Its threads see that it is dead, and end; nobody hears what they do meanwhile.
  if (slot.node != nullptr && !slot.ending) {
    threads.Spawn(&process, [node = std::shared_ptr<Node>(std::move(slot.node))] { node->Stop(); });
  }
  const bool is_restarted_otherwise = slot.ending;
  if (!slot.ending) slot = Slot{};
  if (down != kNever && !is_restarted_otherwise) {
    threads.At(threads.now() + down, nullptr, [this, replica] { Start(replica); });
  }
}

void World::Pause(Process& process, Time duration) {
  history.Note("is stopped", {.rank = process.number},
               static_cast<uint64_t>(duration / milliseconds(1)));
  process.paused_until = std::max(process.paused_until, threads.now() + duration);
  threads.At(threads.now() + kSilence, nullptr, [this, process = &process] { Silent(*process); });
}

// Whoever has called it hears nothing, and goes elsewhere; it finds that when it goes on.
void World::Silent(Process& process) {
  const int replica = ReplicaOf(process);
  if (replica < 0 || process.dead || process.paused_until <= threads.now()) return;
  Node* node = slots_[Index(replica)].node.get();
  for (const auto& [id, call] : slots_[Index(replica)].calls) {
    if (node != nullptr) Deliver(process, [node, id = id] { node->Cancel(id); });
  }
  BreakCalls(replica, "no answer to a ping");
}

void World::Drain(int replica, Time down) {
  Slot& slot = slots_[Index(replica)];
  if (slot.node == nullptr || slot.ending) return;
  history.Note("drains", {.rank = replica});
  slot.ending = true;
  threads.Spawn(slot.process, [this, replica, down] { End(replica, down); });
}

// On a thread of it, which may die at any time.
void World::End(int replica, Time down) {
  Slot& slot = slots_[Index(replica)];
  Process& process = *slot.process;
  Node& node = *slot.node;
  node.BeginDrain();
  threads.Sleep(kLameDuck);
  slot.serving = false;
  const Time end = threads.now() + kDrain;
  while (!process.dead && node.calls() > 0 && threads.now() < end) {
    threads.Sleep(milliseconds(100));
  }
  if (!process.dead) {
    node.CancelCalls();
    BreakCalls(replica, "connection closed");
    network.Died(process);
    threads.Sleep(milliseconds(10));
  }
  node.Stop();
  if (!process.dead) {
    const std::string left = node.Leaks();
    if (!left.empty()) history.Wrong({}, absl::StrCat(process.name, " ends and has ", left));
  }
  process.dead = true;
  slot.node.reset();
  slot = Slot{};
  if (down == kNever) return;
  threads.At(threads.now() + down, nullptr, [this, replica] { Start(replica); });
}

// ---- calls of ranks

uint64_t World::NewCall(const Subject& rank) {
  ranks_.push_back(rank);
  return ranks_.size();
}

Subject World::RankOf(uint64_t call) const { return ranks_[call - 1]; }

void World::Call(const RankCallPtr& call, int replica) {
  threads.At(threads.now() + network.Delay(), nullptr, [this, call, replica] {
    if (call->ended) return;
    Node* node = Serving(replica);
    if (node == nullptr) {
      threads.At(threads.now() + network.Delay(), nullptr, [call] {
        if (!std::exchange(call->ended, true)) call->done(absl::UnavailableError("refused"));
      });
      return;
    }
    slots_[Index(replica)].calls.emplace(call->id, call);
    Deliver(node->process(), [node, call] {
      if (!call->ended) node->GetPlan(call);
    });
  });
}

void World::GiveUp(const RankCallPtr& call, int replica) {
  if (std::exchange(call->ended, true)) return;
  history.Ended(call->id);
  threads.At(threads.now() + network.Delay(), nullptr, [this, call, replica] {
    if (slots_[Index(replica)].calls.erase(call->id) == 0) return;
    Node* node = slots_[Index(replica)].node.get();
    if (node == nullptr) return;
    Deliver(node->process(), [node, id = call->id] { node->Cancel(id); });
  });
}

void World::Answer(const Process& by, const RankCallPtr& call, const JobRoutes::Answer& answer) {
  const int replica = ReplicaOf(by);
  if (replica >= 0) slots_[Index(replica)].calls.erase(call->id);
  threads.At(threads.now() + network.Delay(), nullptr, [this, call, answer] {
    if (std::exchange(call->ended, true)) return;
    history.Ended(call->id);
    call->done(answer);
  });
}

Time World::ComputeTime() { return milliseconds(random.Between(5, 1500)); }

}  // namespace bucketd::simulation
