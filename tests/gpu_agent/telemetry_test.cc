// The ring between a trainer and its node's agent: what comes through, what a full one loses, and
// what neither side can do to the other, dead or hostile.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "gpu_agent/telemetry/collector.h"
#include "gpu_agent/telemetry/reader.h"
#include "gpu_agent/telemetry/writer.h"
#include "passes/base/types.h"
#include "tests/gpu_agent/set_clocks.h"

namespace bucketd::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kSmall = 8;  // records of a ring that is soon full

RunRecord RunOf(uint32_t step) {
  RunRecord record;
  record.plan = 7;
  record.bytes = 4096;
  record.step = step;
  record.kind = static_cast<uint8_t>(CollectiveKind::kAllGather);
  record.dtype = static_cast<uint8_t>(DType::kBF16);
  record.packed = 1;
  record.link = kNoLink;
  return record;
}

// A ring that a test writes by hand, as a process that is not ours would.
class Forged {
 public:
  explicit Forged(uint32_t records = kSmall, int seals = F_SEAL_SHRINK | F_SEAL_GROW)
      : memory_(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    header_.records = records;
    EXPECT_EQ(ftruncate(fd(), static_cast<off_t>(RingBytes(records))), 0);
    EXPECT_EQ(fcntl(fd(), F_ADD_SEALS, seals), 0);
  }
  int fd() const { return memory_.get(); }
  RingHeader& header() { return header_; }
  void Put() const { Put(&header_, sizeof(header_), 0); }
  void Put(const void* what, size_t bytes, size_t at) const {
    EXPECT_EQ(pwrite(fd(), what, bytes, static_cast<off_t>(at)), static_cast<ssize_t>(bytes));
  }
  void Put(const RunRecord& record, uint64_t at) const {
    Put(&record, sizeof(record), sizeof(RingHeader) + at * sizeof(record));
  }
  absl::StatusOr<RingReader> Open() const {
    Put();
    return RingReader::Open(Fd(dup(fd())));
  }

 private:
  const Fd memory_;
  RingHeader header_;
};

std::string WhyNot(const absl::StatusOr<RingReader>& opened) {
  return std::string(opened.status().message());
}

// Counts what a collector says; of its thread, read by the test's.
class Heard : public CollectorEvents {
 public:
  void Opened(int /*ring*/) override { ++opened; }
  void Refused(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    refusals_.push_back(why);
  }
  void Ran(int ring, const RingReader& reader, const std::vector<RunRecord>& records) override {
    const std::lock_guard lock(mutex_);
    std::vector<uint32_t>& steps = steps_[ring];
    for (const RunRecord& record : records) steps.push_back(record.step);
    dropped = reader.dropped();
  }
  void Closed(int /*ring*/, const std::string& why) override {
    const std::lock_guard lock(mutex_);
    ends_.push_back(why);
  }

  std::vector<std::string> refusals() const { return Copy(refusals_); }
  std::vector<std::string> ends() const { return Copy(ends_); }
  // Of all rings, in the order of their coming.
  std::vector<uint32_t> steps() const {
    const std::lock_guard lock(mutex_);
    std::vector<uint32_t> all;
    for (const auto& [ring, steps] : steps_) all.insert(all.end(), steps.begin(), steps.end());
    return all;
  }

  std::atomic<int> opened{0};
  std::atomic<uint64_t> dropped{0};

 private:
  std::vector<std::string> Copy(const std::vector<std::string>& from) const {
    const std::lock_guard lock(mutex_);
    return from;
  }
  mutable std::mutex mutex_;
  std::vector<std::string> refusals_, ends_;
  std::map<int, std::vector<uint32_t>> steps_;
};

class TelemetryTest : public testing::Test {
 protected:
  TelemetryTest() {
    std::string folder = testing::TempDir() + "/ring-XXXXXX";
    socket_ = absl::StrCat(mkdtemp(folder.data()), "/agent");
  }
  std::unique_ptr<Collector> StartCollector(size_t most_rings = 256, bool any_user = false) {
    CollectorOptions options;
    options.any_user = any_user;
    options.socket = socket_;
    options.most_rings = most_rings;
    auto started = Collector::Start(options, heard_);
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }
  std::unique_ptr<RingWriter> Writer(uint32_t records = kRingRecords) const {
    auto made = RingWriter::Create("job", socket_, records);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  // A connection as a trainer makes it, which hands over `fd` or nothing.
  Fd Connect(
      int fd = -1, const std::function<void()>& before = [] {}) const {
    Fd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    before();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket_.data(), socket_.size());
    EXPECT_EQ(connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    if (fd < 0) return connection;
    char byte = 1;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    EXPECT_EQ(sendmsg(connection.get(), &message, 0), 1);
    return connection;
  }
  // Until it is so, within a generous time.
  static void Await(const std::function<bool()>& so) {
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (!so() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
    ASSERT_TRUE(so());
  }

  std::string socket_;
  Heard heard_;
};

TEST_F(TelemetryTest, WhatIsWrittenComesThroughInOrder) {
  const auto collector = StartCollector();
  const auto writer = Writer();
  std::vector<uint32_t> expected;
  for (uint32_t step = 0; step < 10'000; ++step) {
    writer->Write(RunOf(step));
    expected.push_back(step);
    if (step % 2000 == 1999) Await([&] { return heard_.steps().size() == expected.size(); });
  }
  EXPECT_EQ(heard_.steps(), expected);
  EXPECT_EQ(writer->dropped(), 0u);
}

TEST_F(TelemetryTest, AFullRingDropsTheNewestAndCounts) {
  const auto writer = Writer(kSmall);  // nobody reads
  for (uint32_t step = 0; step < 12; ++step) writer->Write(RunOf(step));
  EXPECT_EQ(writer->dropped(), 4u);
  const auto collector = StartCollector();
  Await([&] {
    writer->Write(RunOf(100));  // a record looks for the agent, once its pause is over
    return heard_.steps().size() > kSmall;
  });
  std::vector<uint32_t> steps = heard_.steps();
  steps.resize(kSmall + 1);
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 100));
}

TEST_F(TelemetryTest, TheAgentHearsWhatWasDroppedWhileItRead) {
  const auto collector = StartCollector();
  const auto writer = Writer(kSmall);
  Await([&] { return heard_.opened == 1; });
  Await([&] {
    for (uint32_t step = 0; step < 1000; ++step) writer->Write(RunOf(step));
    return heard_.dropped > 0;
  });
}

TEST_F(TelemetryTest, AnAgentWhoseClockIsSetReadsOn) {
  const auto collector = StartCollector();
  const auto writer = Writer();
  Await([&] { return heard_.opened == 1; });
  const ClockIsOff clock(CLOCK_REALTIME, absl::ZeroDuration());
  for (const int hours : {-1, 0, 1, 0}) {
    clock.Set(absl::Hours(hours));
    const size_t before = heard_.steps().size();
    writer->Write(RunOf(0));
    ASSERT_NO_FATAL_FAILURE(Await([&] { return heard_.steps().size() == before + 1; }));
  }
}

TEST_F(TelemetryTest, ATrainerThatIsKilledIsReadToItsEndAndLetGo) {
  const auto collector = StartCollector();
  const pid_t child = fork();
  if (child == 0) {
    const auto writer = RingWriter::Create("job", socket_);
    if (!writer.ok()) _exit(1);
    for (uint32_t step = 0; step < 100; ++step) (*writer)->Write(RunOf(step));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  Await([&] { return heard_.ends().size() == 1; });
  EXPECT_EQ(heard_.steps().size(), 100u);
  EXPECT_THAT(heard_.ends(), ElementsAre(""));
}

TEST_F(TelemetryTest, AnAgentThatIsKilledIsNothingToTheTrainerAndTheNextOneGoesOn) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    Heard heard;
    CollectorOptions options;
    options.socket = socket_;
    const auto collector = Collector::Start(options, heard);
    while (heard.steps().size() < 4) absl::SleepFor(absl::Milliseconds(5));
    // Its last words are that they were read.
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  struct stat found {};
  Await([&] { return stat(socket_.c_str(), &found) == 0; });
  std::unique_ptr<RingWriter> writer;
  Await([&] {
    writer = Writer(kSmall);
    return writer->connected();
  });
  for (uint32_t step = 0; step < 4; ++step) writer->Write(RunOf(step));
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const absl::Time begin = absl::Now();
  for (uint32_t step = 4; step < 1000; ++step) writer->Write(RunOf(step));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
  EXPECT_GE(writer->dropped(), 1000u - 4 - kSmall);
  const auto collector = StartCollector();
  Await([&] {
    writer->Write(RunOf(5000));
    return heard_.steps().size() > kSmall;
  });
  std::vector<uint32_t> steps = heard_.steps();
  steps.resize(kSmall);
  EXPECT_THAT(steps, ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
}

TEST_F(TelemetryTest, AnAgentThatWritesNonsenseFillsTheRingAndNoMore) {
  const Fd listener(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const auto writer = Writer(kSmall);
  ASSERT_TRUE(writer->connected());
  // The hostile agent has the memory: here, by the descriptor's name in this process.
  Fd memory;
  for (int fd = 3; fd < 256 && !memory; ++fd) {
    char name[64] = {};
    const std::string link = absl::StrCat("/proc/self/fd/", fd);
    if (readlink(link.c_str(), name, sizeof(name) - 1) > 0 &&
        strstr(name, "bucketd-telemetry") != nullptr) {
      memory = Fd(dup(fd));
    }
  }
  ASSERT_TRUE(memory);
  const std::string noise(sizeof(RingHeader), '\xa5');
  ASSERT_EQ(pwrite(memory.get(), noise.data(), noise.size(), 0), ssize_t{sizeof(RingHeader)});
  EXPECT_NE(ftruncate(memory.get(), 0), 0);
  for (uint32_t step = 0; step < 20; ++step) writer->Write(RunOf(step));
  EXPECT_EQ(writer->dropped(), 20u);
  EXPECT_EQ(writer->AddLink({}), 0);
}

TEST(RingReader, RefusesWhatIsNoRing) {
  EXPECT_THAT(WhyNot(RingReader::Open(Fd(open("/dev/zero", O_RDONLY)))),
              HasSubstr("keeps its size"));
  EXPECT_THAT(WhyNot(Forged(kSmall, F_SEAL_GROW).Open()), HasSubstr("keeps its size"));
  EXPECT_THAT(WhyNot(Forged(kSmall, F_SEAL_SHRINK).Open()), HasSubstr("keeps its size"));
  Forged later;
  later.header().version = kRingVersion + 1;
  EXPECT_THAT(WhyNot(later.Open()), HasSubstr("no ring of version 2"));
  Forged other;
  other.header().magic[0] = 'x';
  EXPECT_THAT(WhyNot(other.Open()), HasSubstr("no ring of version 2"));
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
      [](RunRecord& r) { r.kind = 0; },        [](RunRecord& r) { r.kind = 200; },
      [](RunRecord& r) { r.dtype = 0; },       [](RunRecord& r) { r.dtype = 99; },
      [](RunRecord& r) { r.bytes = 0; },       [](RunRecord& r) { r.bytes = INT64_MAX; },
      [](RunRecord& r) { r.link = 0; },        [](RunRecord& r) { r.launches = 0; },
      [](RunRecord& r) { r.packed = 2; },      [](RunRecord& r) { r.peak_bytes = -1; },
      [](RunRecord& r) { r.arena_bytes = -1; }};
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
    const auto counted = RingReader::Open(Fd(dup(forged.fd())));
    EXPECT_FALSE(counted.ok());
  }
}

TEST_F(TelemetryTest, WhoSendsSomethingElseIsRefusedAndTheOthersGoOn) {
  const auto collector = StartCollector();
  const auto writer = Writer();
  const Fd zero(open("/dev/zero", O_RDONLY));
  const Fd wrong = Connect(zero.get());
  Await([&] { return heard_.refusals().size() == 1; });
  const Fd silent = Connect();
  EXPECT_EQ(send(silent.get(), "hello", 5, MSG_NOSIGNAL), 5);
  char byte = 0;
  EXPECT_LE(recv(silent.get(), &byte, 1, 0), 0);  // the agent hangs up
  Forged forged;
  forged.Put();
  const Fd liar = Connect(forged.fd());
  Await([&] { return heard_.opened == 2; });
  forged.header().head = 1000;
  forged.Put();
  Await([&] { return heard_.ends().size() == 1; });
  EXPECT_THAT(heard_.ends()[0], HasSubstr("1000 new records in a ring of 8"));
  writer->Write(RunOf(1));
  Await([&] { return heard_.steps().size() == 1; });
}

TEST_F(TelemetryTest, MoreTrainersThanThereIsRoomForAreRefused) {
  const auto collector = StartCollector(1);
  const auto first = Writer();
  Await([&] { return heard_.opened == 1; });
  const auto second = Writer();
  Await([&] { return heard_.refusals().size() == 1; });
  EXPECT_THAT(heard_.refusals()[0], HasSubstr("more than 1 trainers"));
}

// Of the calling thread alone, while it lives: whom a socket's other side sees.
class AnotherUser {
 public:
  explicit AnotherUser(uid_t user) { Become(user); }
  ~AnotherUser() { Become(0); }
  AnotherUser(const AnotherUser&) = delete;
  AnotherUser& operator=(const AnotherUser&) = delete;

 private:
  static void Become(uid_t user) { EXPECT_EQ(syscall(SYS_setresuid, -1, user, -1), 0); }
};

TEST_F(TelemetryTest, OneOfSeveralUsersLeavesHalfOfTheRoomToOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may be another user";
  ASSERT_EQ(chmod(socket_.substr(0, socket_.rfind('/')).c_str(), 0711), 0);
  const auto collector = StartCollector(5, true);
  Forged forged;
  forged.Put();
  std::vector<Fd> theirs, ours;
  {
    const AnotherUser nobody(65534);
    for (int i = 0; i < 4; ++i) theirs.push_back(Connect(forged.fd()));
  }
  Await([&] { return heard_.opened == 3 && heard_.refusals().size() == 1; });
  EXPECT_THAT(heard_.refusals()[0], HasSubstr("user 65534 has 3 trainers already"));
  ours.push_back(Connect(forged.fd()));
  Await([&] { return heard_.opened == 4; });
  theirs.clear();
  Await([&] { return heard_.ends().size() == 3; });
  for (int i = 0; i < 2; ++i) ours.push_back(Connect(forged.fd()));
  Await([&] { return heard_.opened == 6; });
}

TEST_F(TelemetryTest, AnAgentWithoutDescriptorsAsksAgainOnceAPeriodAndThenTakesInWhoWaited) {
  const auto collector = StartCollector();
  Forged forged;
  forged.Put();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};  // poll takes no more entries either
  const Fd trainer = Connect(forged.fd(), [&] { ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0); });
  const absl::Time begin = absl::Now();
  Await([&] { return heard_.refusals().size() >= 5; });
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(300));
  EXPECT_THAT(heard_.refusals()[0], HasSubstr("waits to be taken in: Too many open files"));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  Await([&] { return heard_.opened == 1; });
}

TEST_F(TelemetryTest, OneAgentHasASocketAndADeadOnesIsTakenOver) {
  auto first = StartCollector();
  Heard other;
  CollectorOptions options;
  options.socket = socket_;
  EXPECT_THAT(Collector::Start(options, other).status().message(), HasSubstr("another agent"));
  first.reset();
  const Fd dead(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_TRUE(Collector::Start(options, other).ok());
}

TEST_F(TelemetryTest, TablesAreBounded) {
  const auto writer = Writer();
  RingLink link;
  link.size = 2;
  link.ranks_per_node = 2;
  for (uint32_t i = 0; i < kRingLinks; ++i) {
    link.group = i + 1;
    EXPECT_EQ(writer->AddLink(link), i);
    EXPECT_EQ(writer->AddLink(link), i);
  }
  link.group = 99;
  EXPECT_EQ(writer->AddLink(link), kNoLink);
  for (uint32_t i = 0; i < 2 * kRingPlans; ++i) writer->AddPlan({});
}

}  // namespace
}  // namespace bucketd::agent
