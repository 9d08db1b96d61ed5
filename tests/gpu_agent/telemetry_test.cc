// The ring between a trainer and its node's agent: what comes through, what a full one loses, and
// what neither side can do to the other, dead or hostile.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
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
#include "tests/gpu_agent/forged_ring.h"
#include "tests/gpu_agent/heard_records.h"
#include "tests/gpu_agent/set_clocks.h"
#include "tests/temp_folder.h"

namespace {
std::atomic<int> no_memory_for_files{0};  // the kernel's answer to whoever asks for some
}  // namespace

extern "C" int posix_fallocate(int file, off_t at, off_t bytes) {
  if (no_memory_for_files != 0) return no_memory_for_files;
  return syscall(SYS_fallocate, file, 0, at, bytes) == 0 ? 0 : errno;
}

namespace bucketd::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

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
  // Of all rings, in the order of their coming: all, or the first `most`.
  std::vector<uint32_t> steps(size_t most = SIZE_MAX) const {
    const std::lock_guard lock(mutex_);
    std::vector<uint32_t> all;
    for (const auto& [ring, steps] : steps_) all.insert(all.end(), steps.begin(), steps.end());
    all.resize(std::min(all.size(), most));
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
  sockaddr_un Address() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket_.data(), socket_.size());
    return address;
  }
  // An agent that takes nobody in by itself.
  Fd Listener() const {
    Fd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    const sockaddr_un address = Address();
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(listen(listener.get(), 8), 0);
    return listener;
  }
  // A connection as a trainer makes it, which hands over `fd` or nothing.
  Fd Connect(
      int fd = -1, const std::function<void()>& before = [] {}) const {
    Fd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    before();
    const sockaddr_un address = Address();
    EXPECT_EQ(
        connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
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
    // Who is refused may be cut off before it has said anything.
    if (sendmsg(connection.get(), &message, MSG_NOSIGNAL) != 1) {
      EXPECT_EQ(errno, EPIPE);
    }
    return connection;
  }
  // Until it is so, within a generous time.
  static void Await(const std::function<bool()>& so) {
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (!so() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
    ASSERT_TRUE(so());
  }

  const TempFolder folder_;
  const std::string socket_ = folder_.path() + "/agent";
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

// As where all memory is promised to somebody (vm.overcommit_memory=2): a page that is not there
// when it is first written would end the trainer.
TEST_F(TelemetryTest, ATrainerGetsAllOfItsRingOrNone) {
  no_memory_for_files = ENOSPC;
  const auto none = RingWriter::Create("job", socket_);
  no_memory_for_files = 0;
  EXPECT_EQ(none.status(),
            absl::UnavailableError("no memory for telemetry: No space left on device"));
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
  EXPECT_THAT(heard_.steps(9), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 100));
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

TEST_F(TelemetryTest, ATrainerThatIsKilledIsLetGoThoughAChildOfItHasItsConnection) {
  const auto collector = StartCollector();
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t trainer = fork();
  if (trainer == 0) {
    const auto writer = RingWriter::Create("job", socket_);
    if (!writer.ok()) _exit(1);
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    for (uint32_t step = 0; step < 100; ++step) (*writer)->Write(RunOf(step));
    if (write(told[1], &child, sizeof(child)) != sizeof(child)) _exit(1);
    pause();
  }
  pid_t child = 0;
  ASSERT_EQ(read(told[0], &child, sizeof(child)), ssize_t{sizeof(child)});
  Await([&] { return heard_.steps().size() == 100; });
  EXPECT_THAT(heard_.ends(), IsEmpty());
  kill(trainer, SIGKILL);
  Await([&] { return heard_.ends().size() == 1; });
  EXPECT_THAT(heard_.ends(), ElementsAre(""));
  kill(child, SIGKILL);
  waitpid(trainer, nullptr, 0);
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
  EXPECT_THAT(heard_.steps(8), ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
}

TEST_F(TelemetryTest, AnAgentThatRefusesIsAskedLessAndLessAndTheNextOneAtOnce) {
  const ClockIsOff clock(CLOCK_MONOTONIC_COARSE, absl::ZeroDuration());
  int seconds = 0, asked = 0;
  std::unique_ptr<RingWriter> writer;
  const auto pass = [&] {
    clock.Set(absl::Seconds(++seconds));
    writer->Write(RunOf(0));
  };
  {
    const Fd agent = Listener();
    writer = Writer();
    while (seconds < 200) {
      while (Fd(accept4(agent.get(), nullptr, nullptr, SOCK_NONBLOCK))) ++asked;
      pass();
    }
  }
  EXPECT_THAT(asked, AllOf(Ge(8), Le(9)));  // after 0, 1, 3, 7, 15, 31, 63, 127 and 191 seconds
  unlink(socket_.c_str());
  auto collector = StartCollector();
  for (const int until = seconds + 65; seconds < until && !writer->connected();) pass();
  EXPECT_TRUE(writer->connected());
  Await([&] { return heard_.opened == 1; });
  pass();  // and sees that it is taken
  collector = nullptr;
  collector = StartCollector();
  pass();
  Await([&] { return heard_.opened == 2; });
}

TEST_F(TelemetryTest, AnAgentThatWritesNonsenseFillsTheRingAndNoMore) {
  const Fd listener = Listener();
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
  const sockaddr_un address = Address();
  ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
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
  const auto add = [&](uint64_t digest) {
    RingPlan plan;
    plan.plan = digest;
    return writer->AddPlan(plan);
  };
  for (uint32_t i = 0; i < 2 * kRingPlans; ++i) EXPECT_EQ(add(i), i < kRingPlans);
  EXPECT_TRUE(add(3)) << "it has its place";
}

TEST_F(TelemetryTest, APlansArenaIsThatOfTheExecutorsThatAreOpenWithIt) {
  HeardRecords heard;
  const auto writer = *RingWriter::Create("job", heard.socket());
  const auto arenas = [&](std::vector<int64_t> wanted) {
    std::vector<int64_t> found;
    for (const absl::Time end = absl::Now() + absl::Seconds(20);
         absl::Now() < end && found != wanted;) {
      absl::SleepFor(absl::Milliseconds(5));
      found.clear();
      for (const RingPlan& plan : heard.plans()) found.push_back(plan.arena_bytes);
    }
    return found == wanted;
  };
  RingPlan seven, eight;
  seven.plan = 7, eight.plan = 8;
  seven.arena_bytes = 100, eight.arena_bytes = 30;
  EXPECT_TRUE(writer->AddPlan(seven) && writer->AddPlan(eight) && writer->AddPlan(seven));
  EXPECT_TRUE(arenas({200, 30}));
  writer->EndPlan(7, 100);
  EXPECT_TRUE(arenas({100, 30}));
  writer->EndPlan(7, 100);
  writer->EndPlan(9, 5);
  EXPECT_TRUE(arenas({0, 30}));
}

}  // namespace
}  // namespace bucketd::agent
