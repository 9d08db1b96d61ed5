// What a trainer on GPUs reports of its buckets: a record for each that a stream has joined, once
// it is done.
#include <cstdint>
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
    heard.Wait(all);  // what is not noted when an executor closes is lost
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

}  // namespace
}  // namespace bucketd::agent
