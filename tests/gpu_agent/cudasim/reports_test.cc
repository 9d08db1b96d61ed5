// What a trainer on GPUs reports of its buckets: a record for each that a stream has joined, once
// it is done.
#include <cstdint>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/steps.h"
#include "tests/gpu_agent/heard_records.h"

namespace bucketd::agent {
namespace {

using ::testing::IsEmpty;

TEST(ReportsOnGpusTest, EachBucketThatAStreamHasJoinedIsARecord) {
  constexpr uint32_t kSteps = 3;
  const size_t all = kSteps * Buckets(1).size() * static_cast<size_t>(kRanks);
  HeardRecords heard;
  sim::World world({.devices = kRanks});
  OnGpus(world, 2, [&](Trainer& mine, int rank) {
    char* error = nullptr;
    bucket_telemetry* telemetry = bucket_telemetry_open(heard.socket().c_str(), "job", &error);
    ASSERT_NE(telemetry, nullptr) << error;
    mine.Report(*telemetry);
    bucket_executor_peak(mine.executor(), 4711 + rank);
    for (uint32_t step = 0; step < kSteps; ++step) EXPECT_EQ(mine.Step(), "");
    heard.Wait(all);  // what nobody has seen done when an executor closes is lost
    EXPECT_EQ(mine.Close(), 1);
    bucket_telemetry_close(telemetry);
  });
  const std::vector<RunRecord> records = heard.Wait(all);
  ASSERT_EQ(records.size(), all);
  std::map<std::pair<int64_t, uint16_t>, uint32_t> next;  // by rank, as its peak says, and bucket
  for (const RunRecord& record : records) {
    EXPECT_EQ(record.step, (next[{record.peak_bytes, record.bucket}]++));
    EXPECT_EQ(record.kind, static_cast<uint8_t>(Buckets(1)[record.bucket].kind));
    EXPECT_GT(record.wire_ns, 0u);
    EXPECT_EQ(record.pack_ns > 0, record.packed == 1);
    EXPECT_EQ(record.unpack_ns > 0, record.packed == 1);
  }
  EXPECT_EQ(next.size(), Buckets(1).size() * static_cast<size_t>(kRanks));
  EXPECT_EQ(next.begin()->first.first, 4711);
  EXPECT_THAT(world.findings(), IsEmpty());
}

// Whoever closes right behind the last join leaves nobody the time to see how long it took.
TEST(ReportsOnGpusTest, WhatNobodyHasSeenDoneAtACloseIsCountedAsLost) {
  HeardRecords heard;
  sim::World world({.devices = kRanks});
  uint64_t lost = 0;
  std::promise<void> enqueued, closed;
  OnGpus(world, 1, [&](Trainer& mine, int rank) {
    const auto run = mine.Prepare();
    char* error = nullptr;
    bucket_telemetry* telemetry = bucket_telemetry_open(heard.socket().c_str(), "job", &error);
    CudaStream stream(rank, mine.stream(), false);
    auto gate = stream.Shut();  // until both have joined, nothing is done
    if (rank == 0) mine.Report(*telemetry);
    EXPECT_EQ(mine.Enqueue(*run, {0, 1, 2, 3}, Fault::kNone), "");
    if (rank == 0) enqueued.get_future().wait();
    *gate = nullptr;
    if (rank == 1) {
      enqueued.set_value();
      closed.get_future().wait();  // or its end would be rank 0's error
    }
    EXPECT_EQ(mine.Close(), 1);
    if (rank == 0) lost = bucket_telemetry_dropped(telemetry);
    bucket_telemetry_close(telemetry);
    if (rank == 0) closed.set_value();
    mine.Drain();
  });
  EXPECT_GT(lost, 0u);
  EXPECT_EQ(heard.End().size() + lost, Buckets(1).size());
}

}  // namespace
}  // namespace bucketd::agent
