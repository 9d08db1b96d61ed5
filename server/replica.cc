#include "server/replica.h"

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "spdlog/spdlog.h"

#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookups = 4;
constexpr int kUploads = 2;
constexpr int kMaxQueued = 1 << 16;
constexpr std::chrono::seconds kSweep{60};
// A job's ranks come again for each graph that they compile.
constexpr std::chrono::minutes kJobRests{30};
constexpr std::chrono::seconds kHandOver{2};

SteadyTime Now() { return Clock::now(); }

uint64_t NewIncarnation() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

}  // namespace

Replica::Replica(const Parts& parts)
    : timers_(parts.timers),
      metrics_(parts.registry),
      members_(parts.store, {parts.options.cluster_address, NewIncarnation()},
               parts.options.cluster_dead, Now),
      leases_(parts.store, members_, metrics_, Now),
      peers_(parts.peers),
      pool_(kLookups, kMaxQueued),
      uploads_(kUploads, kMaxQueued),
      routes_({leases_, members_, metrics_, peers_, parts.timers, pool_, uploads_, parts.cache,
               parts.stored, parts.graphs, parts.ask_here, parts.cancel_here,
               parts.options.max_waiting_ranks}),
      peer_jobs_(members_, peers_),
      superseded_(parts.superseded),
      beats_(2, kMaxQueued) {}

void Replica::Start() {
  Beat();
  Schedule();
}

void Replica::Schedule() {
  timers_.Schedule(Now() + members_.period(), [this] {
    const auto beat = [this] {
      Beat();
      Schedule();
    };
    if (!beats_.TrySubmit(beat)) Schedule();
  });
}

std::string Replica::Trouble() const {
  std::vector<std::string> all = {members_.Trouble(), members_.Mismatch(), routes_.Trouble()};
  std::erase(all, "");
  return absl::StrJoin(all, "; ");
}

void Replica::Beat() {
  const bool is_first = members_.session() == 0;
  const std::string before = members_.Trouble(), agreed = members_.Mismatch();
  members_.Beat().IgnoreError();  // Trouble() says it
  const std::string now = members_.Trouble(), mismatch = members_.Mismatch();
  if (agreed.empty() && !mismatch.empty()) spdlog::warn("{}", mismatch);
  if (before.empty() != now.empty() && !(is_first && now.empty())) {
    spdlog::warn("replica {}: {}", members_.self().address, now.empty() ? "back" : now);
  }
  if (superseded_ != nullptr && members_.superseded()) {
    spdlog::error(
        "another server has the address {}, and the jobs with it: this one takes no more calls; "
        "give each replica a --cluster-address of its own and start this one anew",
        members_.self().address);
    std::exchange(superseded_, nullptr)();
  }
  routes_.Look();
  std::set<std::string> addresses;
  for (const ReplicaView& replica : members_.List()) addresses.insert(replica.id.address);
  peers_.KeepOnly(addresses);
  leases_.GiveBackOwed();
  if (Now() - swept_ > kSweep) {
    swept_ = Now();
    leases_.Sweep(kJobRests);
  }
  Show();
}

void Replica::Show() {
  std::array<int, kReplicaStates> counts{};
  for (const ReplicaView& replica : members_.List()) ++counts[static_cast<size_t>(replica.state)];
  for (size_t state = 0; state < kReplicaStates; ++state) {
    metrics_.replicas(static_cast<ReplicaState>(state)).Set(counts[state]);
  }
  metrics_.cut_off.Set(members_.lapsed() ? 1 : 0);
}

void Replica::HandOver(std::function<void()> then) {
  members_.BeginDrain();
  routes_.BeginDrain();
  const auto once = std::make_shared<std::once_flag>();
  const auto end = [once, then = std::move(then)] { std::call_once(*once, then); };
  timers_.Schedule(Now() + kHandOver, end);
  const bool submitted = beats_.TrySubmit([this, end] {
    CrashPoint("drain: jobs to be handed over");
    members_.Beat().IgnoreError();  // the others hear of it, however long the rest takes
    leases_.HandOver(LeaseOf::kJob);
    CrashPoint("drain: jobs handed over");
    end();
  });
  if (!submitted) end();
}

void Replica::Stop() {
  members_.Leave();  // all that follows saves others a look at who has left
  peers_.Stop();
  uploads_.Stop();
  pool_.Stop();
  beats_.Stop();
  leases_.Stop();
  leases_.HandOver(LeaseOf::kJob);
  leases_.HandOver(LeaseOf::kPlan);
}

void Replica::Sign(v1::JobStatus& job) const {
  job.set_replica(members_.self().address);
  job.set_has_lease(leases_.Holds(JobLease(job.tenant(), job.id())));
}

ClusterView Replica::View() const {
  return {members_.List(), static_cast<int64_t>(leases_.held(LeaseOf::kJob)),
          static_cast<int64_t>(leases_.held(LeaseOf::kPlan)), Trouble()};
}

}  // namespace bucketd
