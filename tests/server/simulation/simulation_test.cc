// 100,000 ranks and five replicas in virtual time (server/DESIGN.md, "The simulation"): each seed
// is another world, and the same seed the same one.
//
// BUCKETD_SEED runs one of them alone, BUCKETD_RANKS says how many ranks, BUCKETD_TRACE of which
// job all events are printed. seeds.py runs many, on all cores.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"
#include <sys/resource.h>

#include "tests/server/simulation/faults.h"
#include "tests/server/simulation/ranks.h"
#include "tests/server/simulation/world.h"

namespace bucketd::simulation {
namespace {

using std::chrono::seconds;

constexpr int kReplicas = 5;
constexpr int kAllRanks = 100'000;
// Of a seed in the suite, which takes one to two seconds; with all of them it is fifteen to thirty.
constexpr int kFewRanks = 10'000;
constexpr seconds kCalm{100};
constexpr seconds kQuiet{150};  // two sweeps of leases
constexpr seconds kAtMost{2000};

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

struct Outcome {
  std::string wrong;
  uint64_t digest = 0;
  int64_t answered = 0;  // ranks that know how to run
};

void CheckEnd(World& world, Ranks& ranks) {
  ranks.CheckStore();
  for (int replica = 0; replica < kReplicas; ++replica) {
    world.Drain(replica, kNever);
    world.threads.RunUntil(world.threads.now() + seconds(30));
  }
  const auto left = world.engine.store().ListRecords(Shelf::kReplicas, "", "", 10);
  if (!left.ok() || !left->empty()) {
    world.history.Wrong({}, absl::StrCat("all have left, and the store has ",
                                         left.ok() ? left->front().key : left.status().message()));
  }
}

Outcome RunSeed(uint64_t seed, int ranks_of_all) {
  spdlog::set_level(spdlog::level::off);
  const double began = CpuSeconds();
  World world(seed, kReplicas, static_cast<int>(FromEnvironment("BUCKETD_TRACE", -1)));
  Faults faults(world, seed % 8 != 0, kCalm);
  Ranks ranks(world, ranks_of_all, kCalm);
  faults.Begin();
  for (int replica = 0; replica < kReplicas; ++replica) world.Start(replica);
  ranks.Begin();
  const auto goes_on = [&] {
    return world.history.wrong().empty() && world.threads.now() < kAtMost &&
           (!ranks.over() || world.threads.now() < kCalm);
  };
  while (goes_on()) {
    world.threads.RunUntil(world.threads.now() + seconds(5));
    ranks.CheckDeadlines();
    world.history.CheckPresence();
  }
  if (!ranks.over()) world.history.Wrong({}, "ranks still wait when all is over");
  if (world.history.wrong().empty()) {
    world.threads.RunUntil(world.threads.now() + kQuiet);
    CheckEnd(world, ranks);
  }
  world.KillAll();
  std::string errors;
  for (const auto& [reason, count] : ranks.errors())
    absl::StrAppend(&errors, " ", count, " ", reason);
  std::printf(
      "seed %llu: %d jobs, %lld calls, %lld plans, %lld unplanned, %lld computations, %lld of "
      "them without a lease, errors:%s; %llu events, digest %016llx, %.1f s of CPU\n",
      static_cast<unsigned long long>(seed), ranks.jobs(), static_cast<long long>(ranks.calls()),
      static_cast<long long>(world.history.plans()),
      static_cast<long long>(world.history.unplanned()),
      static_cast<long long>(world.history.computations()),
      static_cast<long long>(world.history.unleased()), errors.c_str(),
      static_cast<unsigned long long>(world.history.events()),
      static_cast<unsigned long long>(world.history.digest()), CpuSeconds() - began);
  std::fflush(stdout);
  return {world.history.wrong(), world.history.digest(),
          world.history.plans() + world.history.unplanned()};
}

// Adds how many ranks were answered.
void ExpectWell(int64_t seed, int ranks, int64_t& answered) {
  const Outcome outcome = RunSeed(static_cast<uint64_t>(seed), ranks);
  answered += outcome.answered;
  ASSERT_EQ(outcome.wrong, "") << "\nagain: BUCKETD_SEED=" << seed << " BUCKETD_RANKS=" << ranks
                               << " build/tests/server_simulation_test\n"
                               << "with BUCKETD_TRACE=JOB all events of one job are printed";
}

TEST(SimulationTest, WhateverBreaksRanksAgreeAndAreAnswered) {
  const auto ranks = static_cast<int>(FromEnvironment("BUCKETD_RANKS", kFewRanks));
  const int64_t only = FromEnvironment("BUCKETD_SEED", -1);
  const int64_t first = only >= 0 ? only : 1, seeds = only >= 0 ? 1 : 20;
  int64_t answered = 0;
  for (int64_t seed = first; seed < first + seeds; ++seed) {
    ExpectWell(seed, ranks, answered);
    if (HasFatalFailure()) return;
  }
  // Not of each seed: one job may have most of its ranks, and miss one.
  if (only < 0) {
    EXPECT_GT(answered, seeds * ranks / 2);
  }
}

TEST(SimulationTest, AHundredThousandRanksAndFiveReplicas) {
  int64_t answered = 0;
  ExpectWell(FromEnvironment("BUCKETD_SEED", 21), kAllRanks, answered);
  EXPECT_GT(answered, kAllRanks / 2);
}

TEST(SimulationTest, TheSameSeedIsTheSameWorld) {
  const Outcome one = RunSeed(3, 2000), other = RunSeed(3, 2000), third = RunSeed(5, 2000);
  EXPECT_EQ(one.digest, other.digest);
  EXPECT_NE(one.digest, third.digest);
}

}  // namespace
}  // namespace bucketd::simulation
