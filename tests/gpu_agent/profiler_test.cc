// libbucketd_nccl_profiler.so, called as NCCL calls it and as nobody should. It decides once in a
// process what it does, so each test has a process of its own.
#include "gpu_agent/profiler/profiler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include <sys/wait.h>

#include "gpu_agent/profiler/kernel_times.h"
#include "passes/base/types.h"
#include "tests/gpu_agent/heard_records.h"
#include "tests/gpu_agent/played_nccl.h"
#include "tests/temp_folder.h"

namespace bucketd::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using V4 = PlayedNccl<nccl::PluginV4>;
using V5 = PlayedNccl<nccl::PluginV5>;

// A trainer's process, which has to end well within a minute.
void InTrainer(const std::string& agent, const std::function<void()>& run) {
  const pid_t trainer = fork();
  if (trainer == 0) {
    alarm(60);
    agent.empty() ? unsetenv("BUCKETD_AGENT") : setenv("BUCKETD_AGENT", agent.c_str(), 1);
    run();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(trainer, &status, 0), trainer);
  EXPECT_EQ(status, 0);
}

std::string said;
[[gnu::format(printf, 5, 6)]] void Keep(int level, unsigned long, const char*, int,
                                        const char* format, ...) {
  char text[512];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof(text), format, rest);
  va_end(rest);
  said += std::to_string(level) + " " + text + "\n";
}

TEST(ProfilerTest, ACollectiveIsARecordWithTheTimeOfItsChannels) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    setenv("BUCKETD_JOB", "llama \x01", 1);
    setenv("BUCKETD_LINK_CLASS", "nvlink", 1);
    V5 nccl;
    void* const comm = nccl.Init({}, Keep);
    EXPECT_THAT(said, HasSubstr("3 PROFILER/bucketd: collectives are told to the agent at /tmp/"));
    EXPECT_EQ(nccl.mask(), 1 << 1 | 1 << 6);
    // 1,500 of bf16 a rank, which NCCL counts in bytes.
    void* const all_gather =
        nccl.Coll(comm, nccl.Launch(comm), {"AllGather", "ncclInt8", 3000, 7, 3}, "ncclBfloat16");
    void* const first = nccl.Begin(comm, all_gather, 0, 5'000'000'100);
    void* const second = nccl.Begin(comm, all_gather, 1, 5'000'000'000);
    nccl.End(first, 5'000'050'000);
    nccl.End(second, 5'000'030'000);
    // One may begin when the others are through.
    void* const third = nccl.Begin(comm, all_gather, 2, 5'000'030'100);
    nccl.End(third, 5'000'060'000);
    nccl.Run(comm, {"ReduceScatter", "ncclFloat16", 1500, 8, 1}, 10, 20, "ncclFloat16");
    nccl.Run(comm, {"AllReduce", "ncclFloat32", 1500, 9, 64}, 100, 10'000'000'000);
  });
  const std::vector<RunRecord> records = heard.Wait(3);
  ASSERT_THAT(records, SizeIs(3));
  EXPECT_EQ(records[0].wire_ns, 60'000u);
  EXPECT_EQ(records[0].bytes, 1500 * 2 * 8);
  EXPECT_EQ(records[0].dtype, static_cast<uint8_t>(DType::kBF16));
  EXPECT_EQ(records[0].step, 7u);
  EXPECT_EQ(records[1].wire_ns, 10u);
  EXPECT_EQ(records[1].bytes, 1500 * 2 * 8);
  EXPECT_EQ(records[1].dtype, static_cast<uint8_t>(DType::kF16));
  EXPECT_EQ(records[2].wire_ns, std::numeric_limits<uint32_t>::max());  // no longer than that
  EXPECT_EQ(records[2].bytes, 1500 * 4);
  const std::vector<CollectiveKind> kinds = {
      CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce};
  for (size_t k = 0; k < kinds.size(); ++k) {
    EXPECT_EQ(records[k].plan, kTorchsOwn);
    EXPECT_EQ(records[k].kind, static_cast<uint8_t>(kinds[k]));
    EXPECT_EQ(records[k].bucket, records[k].kind);  // sequences are each kind's own
    EXPECT_EQ(records[k].link, 0);
    EXPECT_EQ(records[k].launches, 1);
  }
  EXPECT_EQ(heard.job(), "llama ?");
  ASSERT_THAT(heard.links(), SizeIs(1));
  EXPECT_STREQ(heard.links()[0].link_class.data(), "nvlink");
  EXPECT_EQ(heard.links()[0].group, PlayedComm().id);
  EXPECT_EQ(heard.links()[0].size, 8u);
  EXPECT_EQ(heard.links()[0].ranks_per_node, 4u);
  ASSERT_THAT(heard.plans(), SizeIs(1));
  EXPECT_EQ(heard.plans()[0].plan, kTorchsOwn);
  EXPECT_EQ(heard.dropped(), 0u);
}

TEST(ProfilerTest, Nccl227HasTheOlderTable) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    V4 nccl;
    void* const comm = nccl.Init();
    EXPECT_NE(nccl.Launch(comm), nullptr);  // or NCCL 2.27 tells of no collective in it
    nccl.Run(comm, {"AllGather", "ncclInt8", 3000, 7, 3}, 1000, 3000);
    nccl.Run(comm, {"ReduceScatter", "ncclBfloat16", 1500, 7, 3}, 1000, 4000);
  });
  const std::vector<RunRecord> records = heard.Wait(2);
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].bytes, 3000 * 8);
  EXPECT_EQ(records[0].dtype, static_cast<uint8_t>(DType::kI8));  // it does not say what they are
  EXPECT_EQ(records[0].wire_ns, 2000u);
  EXPECT_EQ(records[1].bytes, 3000 * 8);
  EXPECT_EQ(records[1].dtype, static_cast<uint8_t>(DType::kBF16));
  EXPECT_EQ(records[1].wire_ns, 3000u);
}

template <typename Nccl>
void Together() {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    Nccl nccl;
    void* const comm = nccl.Init();
    void* const launch = nccl.Launch(comm);
    const std::vector<const char*> names = {"AllReduce", "Broadcast", "AllReduce", "AllGather"};
    std::vector<void*> all;
    for (const char* name : names) all.push_back(nccl.Coll(comm, launch, {name}));
    for (void* coll : all) nccl.Kernel(comm, coll, 2, 0, 5000);
    nccl.Run(comm, {.sequence = 2}, 0, 5000);
  });
  const std::vector<RunRecord> records = heard.Wait(4);
  ASSERT_THAT(records, SizeIs(4));
  for (size_t k = 0; k < 3; ++k) EXPECT_EQ(records[k].link, kNoLink) << k;
  EXPECT_EQ(records[3].link, 0);
}

TEST(ProfilerTest, CollectivesThatShareAKernelAreInNoCostSample) {
  Together<V4>();
  Together<V5>();
}

TEST(ProfilerTest, OnlyGroupsThatACostIsOfAreLinks) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    V5 nccl;
    nccl.Run(nccl.Init({1, "bucketd dp.0", 1, 2}), {.sequence = 1}, 0, 9);
    nccl.Run(nccl.Init({2, "x", 2, 5}), {.sequence = 2}, 0, 9);
    nccl.Run(nccl.Init({3, "x", 0, 5}), {.sequence = 3}, 0, 9);
    nccl.Run(nccl.Init({4, "x", 1, 1}), {.sequence = 4}, 0, 9);
    nccl.Run(nccl.Init({5, "x", 1, -7}), {.sequence = 5}, 0, 9);
    nccl.Run(nccl.Init({6, "bucketd", 1, 2}), {.sequence = 6}, 0, 9);
  });
  const std::vector<RunRecord> records = heard.Wait(6);
  ASSERT_THAT(records, SizeIs(6));
  for (const RunRecord& record : records) {
    EXPECT_EQ(record.plan, record.step == 1 ? kKernelsOfBuckets : kTorchsOwn);
    EXPECT_EQ(record.link, record.step == 6 ? 0 : kNoLink) << record.step;
  }
}

TEST(ProfilerTest, WhatHasNoCostIsNotTold) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    V5 nccl;
    void* const comm = nccl.Init();
    for (const char* name : {"Broadcast", "Reduce", "SendRecv", "AlltoAll", "Invalid", ""}) {
      EXPECT_EQ(nccl.Coll(comm, nccl.Launch(comm), {name}), nullptr) << name;
    }
    EXPECT_EQ(nccl.Coll(comm, nccl.Launch(comm), {nullptr}), nullptr);
    EXPECT_EQ(nccl.Coll(comm, nccl.Launch(comm), {"AllReduce", "Unknown"}), nullptr);
    EXPECT_EQ(nccl.Coll(comm, nccl.Launch(comm), {"AllReduce", nullptr}), nullptr);
    // Of uint8 NCCL says "Unknown" when it is called, and int8 of the bytes of an all-gather.
    nccl.Run(comm, {"AllGather", "ncclInt8"}, 0, 5, "Unknown");
  });
  EXPECT_THAT(heard.Wait(1), ElementsAre(Field(&RunRecord::dtype, uint8_t{3})));
}

TEST(ProfilerTest, WithoutAnAgentItAsksForNothing) {
  InTrainer("", [] {
    V5 nccl;
    EXPECT_EQ(nccl.Init({}, Keep), nullptr);
    EXPECT_EQ(nccl.mask(), 0);
    EXPECT_EQ(said, "3 PROFILER/bucketd: off: BUCKETD_AGENT is not set, so nobody is told\n");
    nccl.Run(nullptr, {}, 0, 5);
    EXPECT_EQ(nccl.plugin().finalize(nullptr), 0);
    EXPECT_EQ(nccl.Init({}, nullptr), nullptr);
  });
  InTrainer(std::string(200, 's'), [] {
    V4 nccl;
    EXPECT_EQ(nccl.Init({}, Keep), nullptr);
    EXPECT_EQ(nccl.mask(), 0);
    EXPECT_THAT(said, HasSubstr("2 PROFILER/bucketd: off: agent's socket sss"));
  });
}

TEST(ProfilerTest, AnAgentMayComeLateAndGo) {
  const TempFolder folder;
  const std::string socket = folder.path() + "/agent";
  InTrainer(socket, [&] {
    V5 nccl;
    void* const comm = nccl.Init();
    uint64_t sequence = 0;
    for (int agent = 0; agent < 2; ++agent) {
      nccl.Run(comm, {.sequence = sequence++}, 0, 5);
      HeardRecords heard(socket);
      // It is looked for once a second, as collectives end.
      while (heard.opened() == 0) {
        nccl.Run(comm, {.sequence = sequence++}, 0, 5);
        absl::SleepFor(absl::Milliseconds(10));
      }
      EXPECT_GE(heard.End().size(), 2u);
    }
  });
}

TEST(ProfilerTest, AChildOfAForkHasNoPartInIt) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    V5 nccl;
    void* const comm = nccl.Init();
    void* const coll = nccl.Coll(comm, nccl.Launch(comm), {.sequence = 1});
    const pid_t child = fork();
    if (child == 0) {
      EXPECT_EQ(nccl.Launch(comm), nullptr);
      nccl.Kernel(comm, coll, 2, 0, 5);
      nccl.Run(comm, {.sequence = 2}, 0, 5);
      EXPECT_EQ(nccl.Init(), nullptr);
      EXPECT_EQ(nccl.mask(), 0);
      EXPECT_EQ(nccl.plugin().finalize(comm), 0);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    nccl.Kernel(comm, coll, 2, 0, 9);
    nccl.Run(comm, {.sequence = 3}, 0, 9);
  });
  EXPECT_THAT(heard.Wait(2), ElementsAre(Field(&RunRecord::step, 1u), Field(&RunRecord::step, 3u)));
}

TEST(ProfilerTest, WhatNeverEndsGivesItsPlaceToOthersAndIsCounted) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    V5 nccl;
    void* const comm = nccl.Init();
    void* const oldest = nccl.Coll(comm, nccl.Launch(comm), {});
    void* const channel = nccl.Begin(comm, oldest, 0, 1);
    void* newest = nullptr;
    for (size_t k = 0; k < KernelTimes::kMost; ++k) {
      newest = nccl.Coll(comm, nccl.Launch(comm), {.sequence = 1});
    }
    EXPECT_EQ(nccl.Begin(comm, oldest, 1, 2), nullptr);  // its place is another's
    nccl.End(channel, 5);
    nccl.Kernel(comm, newest, 2, 0, 5);
    // Neither can these be told of.
    nccl.Coll(comm, nccl.Launch(comm), {.channels = 0});
    nccl.Coll(comm, nccl.Launch(comm), {.channels = 65});
    nccl.Run(comm, {.sequence = 2}, 1000, 10);  // a clock that runs backwards
    nccl.Run(comm, {.sequence = 3, .channels = 64}, 1000, 2000);
  });
  EXPECT_THAT(heard.Wait(2), ElementsAre(Field(&RunRecord::step, 1u), Field(&RunRecord::step, 3u)));
  // Those whose places the last two took are lost too.
  EXPECT_EQ(heard.dropped(), 1u + 2 + 1 + 2);
}

TEST(ProfilerTest, ACommunicatorMayEndBeforeItsKernels) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    V5 nccl;
    void* const comm = nccl.Init();
    void* const coll = nccl.Coll(comm, nccl.Launch(comm), {.sequence = 1});
    void* const channel = nccl.Begin(comm, coll, 0, 100);
    EXPECT_EQ(nccl.plugin().finalize(comm), 0);
    void* const again = nccl.Init();  // in the same place
    EXPECT_NE(again, comm);
    EXPECT_EQ(nccl.Coll(comm, nccl.Launch(comm), {.sequence = 2}), nullptr);
    nccl.End(nccl.Begin(comm, coll, 1, 110), 150);
    nccl.End(channel, 160);
    nccl.End(channel, 170);  // twice
    // It stays loaded, with what it knows.
    dlclose(nccl.library());
    V4 later;
    EXPECT_EQ(later.library(), nccl.library());
    later.Run(later.Init({.id = 5}), {.sequence = 3}, 0, 9);
  });
  const std::vector<RunRecord> records = heard.Wait(2);
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].wire_ns, 60u);
  EXPECT_EQ(records[1].step, 3u);
  EXPECT_EQ(heard.opened(), 1);
}

TEST(ProfilerTest, MoreCommunicatorsThanItKnowsAreNoTrouble) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    V5 nccl;
    std::vector<void*> comms;
    for (uint64_t k = 0; k < 300; ++k) comms.push_back(nccl.Init({.id = k}));
    EXPECT_EQ(comms.back(), nullptr);
    EXPECT_NE(nccl.mask(), 0);  // which is all communicators'
    nccl.Run(comms.back(), {.sequence = 1}, 0, 5);
    nccl.Run(comms[20], {.sequence = 2}, 0, 5);  // the ring has room for 16 groups
    for (void* comm : comms) nccl.plugin().finalize(comm);
    nccl.Run(nccl.Init({.id = 3}), {.sequence = 3}, 0, 5);
  });
  const std::vector<RunRecord> records = heard.Wait(2);
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].link, kNoLink);
  EXPECT_EQ(records[1].link, 3);
  EXPECT_EQ(heard.dropped(), 1u);
}

// Any call with any of what there is, and with what there is not.
template <typename Nccl>
void Disorder(Nccl& nccl, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<void*> known = {nullptr, reinterpret_cast<void*>(uint64_t{1} << 63)};
  const auto any = [&] {
    if (random() % 4 == 0) return reinterpret_cast<void*>(random());
    if (random() % 8 == 0) return reinterpret_cast<void*>(random() % 7 | (random() % 3) << 8);
    return known[random() % known.size()];
  };
  for (int call = 0; call < 3000; ++call) {
    typename Nccl::Event event{};
    event.type = static_cast<decltype(event.type)>(uint64_t{1} << random() % 16);
    event.parent = any();
    if (event.type == nccl::kColl) {
      const nccl::CollV4 coll{random(),
                              random() % 2 == 0 ? "AllReduce" : "ReduceScatter",
                              nullptr,
                              nullptr,
                              random(),
                              0,
                              "ncclFloat32",
                              static_cast<uint8_t>(random()),
                              0,
                              "",
                              ""};
      if constexpr (Nccl::kNewer) {
        event.coll = {coll, any()};
      } else {
        event.coll = coll;
      }
    } else {
      event.channel = {static_cast<uint8_t>(random() % 80), random() % 100};
      if constexpr (Nccl::kNewer) {
        if (event.type == nccl::kCollApi) event.call = {"AllGather", 1, nullptr, 0, nullptr, true};
      }
    }
    void* handle = nullptr;
    nccl::StateArgs args{};
    args.stop = random() % 100;
    switch (random() % 8) {
      case 0:
        known.push_back(
            nccl.Init({random(), "", static_cast<int>(random()), static_cast<int>(random())}));
        break;
      case 1:
        EXPECT_EQ(nccl.plugin().finalize(any()), 0);
        break;
      case 2:
        EXPECT_EQ(nccl.plugin().stop(any()), 0);
        break;
      case 3:
        EXPECT_EQ(nccl.plugin().state(any(), static_cast<int>(random() % 32),
                                      random() % 8 == 0 ? nullptr : &args),
                  0);
        break;
      default:
        EXPECT_EQ(nccl.plugin().start(any(), &handle, random() % 16 == 0 ? nullptr : &event), 0);
        known.push_back(handle);
        break;
    }
  }
  EXPECT_EQ(nccl.plugin().start(any(), nullptr, nullptr), 0);
}

TEST(ProfilerTest, AnyOrderOfCallsIsTakenForNothing) {
  HeardRecords heard;
  InTrainer(heard.socket(), [] {
    V5 five;
    V4 four;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Disorder(five, seed);
      Disorder(four, seed);
    }
    EXPECT_EQ(five.plugin().init(nullptr, 1, nullptr, nullptr, 1, 2, 0, nullptr), 0);
  });
  InTrainer(heard.socket(), [] {
    V5 nccl;
    nccl.Run(nccl.Init(), {.sequence = 4711}, 0, 5);
  });
  for (bool found = false; !found;) {
    for (const RunRecord& record : heard.Wait(1)) found = found || record.step == 4711;
  }
}

TEST(ProfilerTest, ManyThreadsTellAtOnce) {
  constexpr int kThreads = 4;
  constexpr uint64_t kEach = 900;
  HeardRecords heard;
  const auto profiler = Profiler::Create({heard.socket(), "", ""});
  ASSERT_TRUE(profiler.ok()) << profiler.status();
  Profiler& all = **profiler;
  const auto run = [&all](uint64_t thread, uint64_t comm) {
    // The program is some collectives before the kernels.
    std::vector<uint64_t> under_way;
    for (uint64_t k = 0; k < kEach + 10; ++k) {
      nccl::CollV4 coll{};
      coll.sequence = k;
      coll.name = "AllReduce";
      coll.type = "ncclFloat32";
      coll.count = 1000;
      coll.channels = 1;
      if (k < kEach) under_way.push_back(all.Launched(comm, 0, all.Launch(), coll));
      if (k < 10) continue;
      const uint64_t channel = all.ChannelBegan(under_way[k - 10], {0, 1000});
      all.ChannelEnded(channel, 1000 + (k - 10) + 100 * thread);
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back(run, t, all.Begin({t, "", 1, 2}));
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<RunRecord> records = heard.Wait(kThreads * kEach);
  ASSERT_THAT(records, SizeIs(kThreads * kEach));
  std::set<std::pair<uint64_t, uint32_t>> seen;
  for (const RunRecord& record : records) {
    const uint64_t of = heard.links()[record.link].group;
    EXPECT_EQ(record.wire_ns, record.step + 100 * of);
    seen.emplace(of, record.step);
  }
  EXPECT_EQ(seen.size(), kThreads * kEach);
}

}  // namespace
}  // namespace bucketd::agent
