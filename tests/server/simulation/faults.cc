#include "tests/server/simulation/faults.h"

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "prometheus/registry.h"

#include "passes/cost/profile.h"
#include "server/costs/cost_catalog.h"
#include "server/jobs/pin_index.h"
#include "server/jobs/pin_records.h"

namespace bucketd::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLongest{40};  // that one thing is broken, and until it is up again
// Until a replica has lapsed, the ranks that asked it have come elsewhere, and those there agree.
constexpr seconds kOthersDecide{35};
constexpr uint32_t kFewRanks = 64;
constexpr std::array kWhere = {"",        "WriteTogether", "WriteTogether", "ReplaceRecord",
                               "PutPlan", "GetRecords"};

// What jobs ask for as site@latest.
CostProfile SiteProfile(int gamma_us) {
  CostProfile profile;
  profile.name = "site";
  profile.gamma_us = gamma_us;
  return profile;
}

}  // namespace

Faults::Faults(World& world, bool any, Time calm)
    : world_(world), random_(world.random.Next()), any_(any), calm_(calm) {
  world_.engine.SetTrap([this](Process& process, const char* call, Engine::Moment moment) {
    AtStore(process, call, moment);
  });
  world_.engine.SeeEach(
      [this](Process& process, const Changes& changes) { AtChanges(process, changes); });
}

Time Faults::Ms(int64_t least, int64_t most) { return milliseconds(random_.Between(least, most)); }

void Faults::Begin() {
  prometheus::Registry registry;
  CostMetrics metrics(registry);
  CostCatalog catalog(world_.engine.store(), metrics);
  EXPECT_TRUE(catalog.Load().ok());
  EXPECT_TRUE(catalog.Add(SiteProfile(1), ProfileOrigin::kImported, "operator").ok());
  Operate();
  if (!any_) return;
  owners_to_stop_ = 1;
  const int64_t last = (calm_ - kLongest) / milliseconds(1);
  for (int64_t count = random_.Between(2, 9); count > 0; --count) {
    const Time at = Ms(2000, last);
    world_.threads.At(at, nullptr, [this, at] { Draw(at); });
  }
}

void Faults::Draw(Time at) {
  const auto replica = static_cast<int>(random_.Below(static_cast<uint64_t>(world_.replicas())));
  Process* process = world_.ProcessOf(replica);
  Engine& engine = world_.engine;
  switch (random_.Below(11)) {
    case 0:
      world_.Kill(replica, Ms(500, 15'000));
      return;
    case 1:
    case 2:
      if (process != nullptr) SetTrap(*process, true);
      return;
    case 3:
      if (process != nullptr) world_.Pause(*process, Ms(500, 25'000));
      return;
    case 4:
    case 5:
      if (process != nullptr) SetTrap(*process, false);
      return;
    case 6:
      world_.Drain(replica, Ms(500, 5000));
      return;
    case 7: {
      const int other = (replica + 1) % world_.replicas();
      world_.history.Note("wire is cut", {.rank = replica});
      world_.network.Cut(world_.AddressOf(replica), world_.AddressOf(other), at + Ms(500, 25'000));
      return;
    }
    case 8:
      world_.history.Note("engine is away", {});
      engine.Away(at + Ms(500, 15'000));
      return;
    case 9:
      world_.history.Note("engine is away from one", {.rank = replica});
      engine.Away(world_.AddressOf(replica), at + Ms(2000, 25'000));
      return;
    default:
      world_.history.Note("engine is slow and loses outcomes", {});
      engine.Slow(at + Ms(500, 10'000));
      engine.LoseOutcomes(random_.Between(1, 20));
      world_.threads.At(at + Ms(1000, 20'000), nullptr, [&engine] { engine.LoseOutcomes(0); });
      return;
  }
}

void Faults::SetTrap(Process& process, bool kill) {
  Trap& trap = traps_[&process];
  trap.call = kWhere[random_.Below(kWhere.size())];
  trap.calls_left = random_.Between(1, trap.call.empty() ? 200 : 3);
  trap.moment = random_.Chance(50) ? Engine::Moment::kBefore : Engine::Moment::kAfter;
  trap.pause = kill ? Time(0) : Ms(12'000, 25'000);
}

void Faults::AtStore(Process& process, const char* call, Engine::Moment moment) {
  const auto found = traps_.find(&process);
  if (found == traps_.end()) return;
  Trap& trap = found->second;
  if (moment != trap.moment || (!trap.call.empty() && trap.call != call)) return;
  if (--trap.calls_left > 0) return;
  const Trap sprung = trap;
  traps_.erase(found);
  if (world_.threads.now() > calm_ - kLongest) return;
  world_.history.Note(
      sprung.moment == Engine::Moment::kAfter ? "has been served by the store" : "asks the store",
      {});
  if (sprung.pause == Time(0)) {
    world_.Kill(process, Ms(500, 10'000));
  } else {
    world_.Pause(process, sprung.pause);
  }
}

// Who first fixes what a small job's profile is stops with that on its way, until others have taken
// the job and have asked the catalog anew, where another version is the latest by then.
void Faults::AtChanges(Process& process, const Changes& changes) {
  if (owners_to_stop_ == 0 || world_.threads.now() > calm_ - kLongest) return;
  for (const RecordChange& change : changes.records) {
    const std::string& key = change.record.key;
    if (change.record.shelf != Shelf::kPins || IsPin(key)) continue;
    const std::optional<JobMemory> before = MemoryIn(key, change.before);
    const std::optional<JobMemory> after = MemoryIn(key, change.after);
    const bool begins =
        !before.has_value() || (after.has_value() && before->generation < after->generation);
    if (!begins || !after.has_value() || after->ranks > kFewRanks || after->profiles.empty() ||
        after->profiles[0].first != "site@latest") {
      continue;
    }
    --owners_to_stop_;
    world_.history.Note("has decided, and tells the store", {});
    world_.Pause(process, kOthersDecide);
    Promote();
    return;
  }
}

// ---- operators

Node* Faults::Anyone() {
  const auto first = static_cast<int>(random_.Below(static_cast<uint64_t>(world_.replicas())));
  for (int k = 0; k < world_.replicas(); ++k) {
    if (Node* node = world_.Serving((first + k) % world_.replicas())) return node;
  }
  return nullptr;
}

void Faults::Operate() {
  world_.threads.At(world_.threads.now() + Ms(500, 5000), nullptr, [this] {
    if (off_) {
      SwitchOn();
    } else if (random_.Chance(12)) {
      SwitchOff();
    } else {
      Promote();
    }
    Operate();
  });
}

void Faults::Promote() {
  Node* node = Anyone();
  if (node == nullptr) return;
  world_.threads.Spawn(&node->process(), [this, node, gamma = ++gamma_,
                                          visit = std::make_shared<Node::Visit>(*node)] {
    const auto added = node->costs().Add(SiteProfile(gamma), ProfileOrigin::kImported, "operator");
    if (!added.ok()) return;
    node->costs().Promote("site", added->info.version, PromotionKind::kPromote).IgnoreError();
    if (!node->process().dead) world_.history.Note("promotes", {}, static_cast<uint64_t>(gamma));
  });
}

void Faults::SwitchOff() {
  Node* node = Anyone();
  if (node == nullptr) return;
  off_ = true;
  ++switches_;
  if (switching_on_ > 0) return;  // whoever is told that it is off does not know for how long
  world_.threads.Spawn(&node->process(), [this, node, number = switches_,
                                          visit = std::make_shared<Node::Visit>(*node)] {
    const absl::Status set = node->planning().Set(false, "drill", ServerItself());
    const bool is_told = set.ok() && node->planning().Get().persisted && !node->process().dead;
    if (!is_told || number != switches_) return;
    world_.history.Note("switches planning off", {});
    world_.history.SwitchedOff(world_.threads.now());
  });
}

void Faults::SwitchOn() {
  Node* node = Anyone();
  if (node == nullptr) return;
  off_ = false;
  ++switches_;
  ++switching_on_;
  world_.history.Note("switches planning on", {});
  world_.history.SwitchedOn();
  world_.threads.Spawn(&node->process(),
                       [this, node, visit = std::make_shared<Node::Visit>(*node)] {
                         node->planning().Set(true, "", ServerItself()).IgnoreError();
                         --switching_on_;
                       });
}

}  // namespace bucketd::simulation
