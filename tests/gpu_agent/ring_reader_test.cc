// What an agent takes from a ring's memory, whoever has written it.
#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "gpu_agent/telemetry/reader.h"
#include "tests/gpu_agent/forged_ring.h"

namespace bucketd::agent {
namespace {

using ::testing::HasSubstr;

std::string WhyNot(const absl::StatusOr<RingReader>& opened) {
  return std::string(opened.status().message());
}

TEST(RingReader, RefusesWhatIsNoRing) {
  Fd zero(open("/dev/zero", O_RDONLY));
  EXPECT_THAT(WhyNot(RingReader::Open(zero)), HasSubstr("keeps its size"));
  EXPECT_THAT(WhyNot(Forged(kSmall, F_SEAL_GROW).Open()), HasSubstr("keeps its size"));
  EXPECT_THAT(WhyNot(Forged(kSmall, F_SEAL_SHRINK).Open()), HasSubstr("keeps its size"));
  Forged later;
  later.header().version = kRingVersion + 1;
  EXPECT_EQ(WhyNot(later.Open()),
            "a ring of version 4, this agent reads version 3: install both anew, together");
  Forged before;
  before.header().version = 2;
  EXPECT_THAT(WhyNot(before.Open()), HasSubstr("a ring of version 2, this agent reads version 3"));
  Forged other;
  other.header().magic[0] = 'x';
  EXPECT_EQ(WhyNot(other.Open()), "no ring");
  for (const uint32_t records : {0u, 3u, 2 * kSmall, kMostRingRecords * 2}) {
    Forged wrong;
    wrong.header().records = records;
    EXPECT_THAT(WhyNot(wrong.Open()), HasSubstr("says that it has"));
  }
  Forged loud;
  loud.header().job.fill('j');
  EXPECT_THAT(WhyNot(loud.Open()), HasSubstr("printable"));
  Forged coloured;
  coloured.header().job = {'\x1b', '[', 'm'};
  EXPECT_THAT(WhyNot(coloured.Open()), HasSubstr("printable"));
  Forged full;
  full.header().head = kSmall + 1;
  EXPECT_THAT(WhyNot(full.Open()), HasSubstr("9 new records in a ring of 8"));
  Forged many;
  many.header().link_count = kRingLinks + 1;
  EXPECT_FALSE(many.Open().ok());
}

TEST(RingReader, CountsLossesOfBeforeItOnlyWhereNobodyElseCan) {
  struct Before {
    uint64_t tail, head, counted;
  };
  for (const auto& [tail, head, counted] :
       {Before{2, 4, 0}, Before{0, kSmall, 0}, Before{0, kSmall - 1, 100}}) {
    Forged forged;
    forged.header().tail = tail;
    forged.header().head = head;
    forged.header().dropped = 100;
    auto reader = forged.Open();
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<RunRecord> records;
    ASSERT_TRUE(reader->Read(records).ok());
    EXPECT_EQ(reader->dropped(), counted);
    forged.header().dropped = 103;
    forged.Put();
    ASSERT_TRUE(reader->Read(records).ok());
    EXPECT_EQ(reader->dropped(), counted + 3);
  }
}

TEST(RingReader, EndsWithACountThatCannotBe) {
  for (const uint64_t head : {uint64_t{kSmall} + 1, ~uint64_t{0}}) {
    Forged forged;
    auto reader = forged.Open();
    ASSERT_TRUE(reader.ok()) << reader.status();
    forged.header().head = head;
    forged.Put();
    std::vector<RunRecord> records;
    EXPECT_TRUE(absl::IsDataLoss(reader->Read(records)));
    EXPECT_LE(records.capacity(), kSmall);
  }
}

TEST(RingReader, CountsRecordsThatMakeNoSenseAndKeepsTheOthers) {
  const std::vector<std::function<void(RunRecord&)>> spoiled = {
      [](RunRecord& r) { r.kind = 0; },   [](RunRecord& r) { r.kind = 200; },
      [](RunRecord& r) { r.dtype = 0; },  [](RunRecord& r) { r.dtype = 99; },
      [](RunRecord& r) { r.bytes = 0; },  [](RunRecord& r) { r.bytes = INT64_MAX; },
      [](RunRecord& r) { r.link = 0; },   [](RunRecord& r) { r.launches = 0; },
      [](RunRecord& r) { r.packed = 2; }, [](RunRecord& r) { r.peak_bytes = -1; }};
  Forged forged(16);
  auto reader = forged.Open();
  ASSERT_TRUE(reader.ok());
  for (uint32_t i = 0; i < spoiled.size(); ++i) {
    RunRecord record = RunOf(i);
    spoiled[i](record);
    forged.Put(record, i);
  }
  forged.Put(RunOf(77), spoiled.size());
  forged.header().head = spoiled.size() + 1;
  forged.Put();
  std::vector<RunRecord> records;
  ASSERT_TRUE(reader->Read(records).ok());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].step, 77u);
  EXPECT_EQ(reader->invalid(), spoiled.size());
}

// Bytes of a hostile process: it ends the ring or gives records that the checks let through.
TEST(RingReader, SurvivesNoise) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Forged forged;
    auto reader = forged.Open();
    ASSERT_TRUE(reader.ok());
    std::vector<uint8_t> noise(RingBytes(kSmall));
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
    forged.Put(noise.data(), noise.size(), 0);
    const uint64_t head = random() % (2 * kSmall);
    forged.Put(&head, sizeof(head), offsetof(RingHeader, head));
    if (round % 2 == 0) {
      const uint32_t none[2] = {0, 0};
      forged.Put(none, sizeof(none), offsetof(RingHeader, link_count));
    }
    std::vector<RunRecord> records;
    const absl::Status read = reader->Read(records);
    EXPECT_EQ(read.ok(), head <= kSmall && round % 2 == 0);
    EXPECT_LE(records.size(), kSmall);
    Fd memory(dup(forged.fd()));
    const auto counted = RingReader::Open(memory);
    EXPECT_FALSE(counted.ok());
  }
}

}  // namespace
}  // namespace bucketd::agent
