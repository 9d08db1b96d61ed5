// Who gets into a ring, and what everyone else is told.
#include "gpu_agent/comm/ring_connect.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "gpu_agent/comm/endpoint.h"
#include "tests/gpu_agent/ring_group.h"
#include "tests/gpu_agent/ring_of_threads.h"
#include "tests/gpu_agent/set_clocks.h"

namespace bucketd::agent {
namespace {

using testing::HasSubstr;

class RingConnectTest : public testing::TestWithParam<bool> {
 protected:
  RingConnectOptions Options(int rank, int size = 2) const {
    return TestRing(folder_.path(), rank, size, GetParam());
  }
  static void HurryUp(RingConnectOptions& options) {
    options.deadline = absl::Now() + absl::Seconds(4);
  }
  std::future<absl::StatusOr<RingPeers>> Connect(const RingConnectOptions& options) {
    return std::async(std::launch::async,
                      [this, options] { return ConnectRing(options, *rendezvous_); });
  }
  // Both ranks, which are expected to fail.
  std::vector<absl::Status> Errors(const RingConnectOptions& a, const RingConnectOptions& b) {
    auto first = Connect(a);
    auto second = Connect(b);
    return {first.get().status(), second.get().status()};
  }
  void ExpectConnected(const RingConnectOptions& a, const RingConnectOptions& b) {
    for (const absl::Status& status : Errors(a, b)) EXPECT_TRUE(status.ok()) << status;
  }
  // A connection to where the rank listens.
  Fd Stranger(int rank) {
    auto endpoint = rendezvous_->Lookup(rank);
    while (!endpoint.ok()) {
      std::this_thread::yield();  // until it listens
      endpoint = rendezvous_->Lookup(rank);
    }
    auto fd = Dial(*endpoint, GetParam() ? "127.0.0.1" : "");
    return fd.ok() ? *std::move(fd) : Fd();
  }

  TempFolder folder_;
  std::unique_ptr<FolderRendezvous> rendezvous_ = *FolderRendezvous::Open(folder_.path());
};

TEST_P(RingConnectTest, AWrongTokenIsRefused) {
  RingConnectOptions wrong = Options(1);
  wrong.token.back() = '!';
  RingConnectOptions right = Options(0);
  HurryUp(wrong);
  HurryUp(right);
  for (const absl::Status& status : Errors(right, wrong)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("token"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(wrong.token)));
  }
}

TEST_P(RingConnectTest, ANewerEpochEndsTheOlderOneAndNamesBoth) {
  RingConnectOptions older = Options(0);
  RingConnectOptions newer = Options(1);
  newer.self.epoch = 8;
  HurryUp(newer);
  const std::vector<absl::Status> errors = Errors(older, newer);
  EXPECT_EQ(errors[0].code(), absl::StatusCode::kFailedPrecondition) << errors[0];
  EXPECT_THAT(std::string(errors[0].message()),
              HasSubstr("rank 0 of 2, group dp, epoch 7 does not match rank 1 of 2, group dp, "
                        "epoch 8: expected rank 1"));
  // The newer one waits on, in vain, and keeps whom it met.
  EXPECT_EQ(errors[1].code(), absl::StatusCode::kFailedPrecondition) << errors[1];
  EXPECT_THAT(std::string(errors[1].message()),
              HasSubstr("epoch 8 does not match rank 0 of 2, group dp, epoch 7"));
}

TEST_P(RingConnectTest, AnotherSizeNamesBoth) {
  RingConnectOptions own = Options(0);
  RingConnectOptions other = Options(1);
  other.self.size = 3;
  HurryUp(own);
  HurryUp(other);
  for (const absl::Status& status : Errors(own, other)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("1 of 3"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("0 of 2"));
  }
}

TEST_P(RingConnectTest, AnotherGroupIsNotLetIn) {
  RingConnectOptions other = Options(1);
  other.self.group = "tp";
  RingConnectOptions own = Options(0);
  HurryUp(other);
  HurryUp(own);
  for (const absl::Status& status : Errors(own, other)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("group dp"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("group tp"));
  }
}

// One has looked in vain, and looks again after a pause of this time, not of the clock's.
TEST_P(RingConnectTest, AClockThatIsSetBackKeepsNobodyWaiting) {
  auto early = Connect(Options(0));
  absl::SleepFor(absl::Milliseconds(300));
  const ClockIsOff clock(CLOCK_REALTIME, -absl::Hours(1));
  RingConnectOptions later = Options(1);
  later.deadline = absl::Now() + absl::Seconds(10);
  const auto late = Connect(later).get();
  EXPECT_TRUE(late.ok()) << late.status();
  if (!late.ok()) {  // the early one gives up
    clock.Set(absl::Hours(1));
    const Fd stranger = Stranger(0);
  }
  const auto first = early.get();
  EXPECT_TRUE(first.ok()) << first.status();
}

TEST_P(RingConnectTest, StrangersKeepNobodyOut) {
  RingConnectOptions options = Options(0);
  options.deadline = absl::Now() + absl::Seconds(4);  // less than what a silent one may take
  auto waiting = Connect(options);
  std::vector<Fd> strangers;  // more than may be in a handshake at once; they stay
  const std::string garbage(4096, 'x');
  for (int i = 0; i < 45; ++i) {
    strangers.push_back(Stranger(0));
    if (i >= 40) send(strangers.back().get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  }
  auto peer = Connect(Options(1));
  EXPECT_TRUE(waiting.get().ok());
  EXPECT_TRUE(peer.get().ok());
}

TEST_P(RingConnectTest, AnEndpointThatIsLeftOverIsDialledUntilItsRankIsBack) {
  std::string left_over;
  {
    const auto gone =
        GetParam() ? Listener::OnTcp("127.0.0.1") : Listener::OnUnix(folder_.path(), 1);
    left_over = gone->endpoint();
  }
  ASSERT_TRUE(rendezvous_->Publish(1, left_over).ok());
  ExpectConnected(Options(0), Options(1));
}

TEST_P(RingConnectTest, TextThatIsNoEndpointIsNotDialled) {
  RingConnectOptions options = Options(0);
  options.deadline = absl::Now() + absl::Milliseconds(200);
  ASSERT_TRUE(rendezvous_->Publish(1, "http://example.org").ok());
  const absl::Status status = Connect(options).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("endpoint http://example.org: expected"));
}

TEST_P(RingConnectTest, ARankThatDoesNotComeIsNamed) {
  RingConnectOptions options = Options(0, 4);
  options.deadline = absl::Now() + absl::Milliseconds(50);
  const absl::Status status = Connect(options).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

TEST_P(RingConnectTest, LeavesNoSocketBehind) {
  ExpectConnected(Options(0), Options(1));
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_NE(entry.path().extension(), ".sock") << entry.path();
    EXPECT_NE(entry.path().extension(), ".part") << entry.path();
  }
}

TEST_P(RingConnectTest, OptionsAreChecked) {
  const auto refused = [this](const RingConnectOptions& options) {
    return absl::IsInvalidArgument(ConnectRing(options, *rendezvous_).status());
  };
  RingConnectOptions options = Options(0);
  options.token = "short";
  EXPECT_TRUE(refused(options));
  options = Options(0);
  options.self.rank = 2;
  EXPECT_TRUE(refused(options));
  options = Options(0);
  options.self.group = "";
  EXPECT_TRUE(refused(options));
  options = Options(0);
  options.unix_folder = folder_.path();
  options.tcp_interface = "127.0.0.1";
  EXPECT_TRUE(refused(options));
  options.unix_folder = "";
  for (const char* any : {"0.0.0.0", "::", "::ffff:127.0.0.1", "no such interface", "fe80::1"}) {
    options.tcp_interface = any;
    EXPECT_TRUE(refused(options)) << any;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RingConnectTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Tcp" : "Unix"; });

TEST(Endpoint, AUnixSocketIsForThisUserAlone) {
  TempFolder folder;
  const auto listener = Listener::OnUnix(folder.path(), 3);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string path = listener->endpoint().substr(5);
  struct stat found {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

// In another process of another user; the result of `run` is its exit code.
int AsNobody(const std::function<int()>& run) {
  constexpr uid_t kNobody = 65534;
  const pid_t child = fork();
  if (child == 0) _exit(setuid(kNobody) == 0 ? run() : 99);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Modes keep others out already; here they are open, and the peers' credentials do it.
TEST(Endpoint, AConnectionOfAnotherUserIsRefusedOnBothSides) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user as well";
  TempFolder folder;
  const auto listener = Listener::OnUnix(folder.path(), 3);
  ASSERT_TRUE(listener.ok()) << listener.status();
  ASSERT_EQ(chmod(folder.path().c_str(), 0711), 0);
  ASSERT_EQ(chmod(listener->endpoint().substr(5).c_str(), 0666), 0);
  constexpr int kRefused = 1, kNoWay = 2;
  const int dialled = AsNobody([&] {
    const absl::Status status = Dial(listener->endpoint(), "").status();
    return absl::IsPermissionDenied(status) ? kRefused : status.ok() ? 0 : kNoWay;
  });
  if (dialled == kNoWay) GTEST_SKIP() << "another user cannot reach " << folder.path();
  EXPECT_EQ(dialled, kRefused);
  EXPECT_EQ(listener->Accept().status(),
            absl::PermissionDeniedError("a connection of user 65534: expected user 0"));
}

TEST(Endpoint, AFolderThatOthersMayEnterIsRefused) {
  TempFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0710), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(Listener::OnUnix(folder.path(), 0).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(FolderRendezvous::Open(folder.path()).status()));
}

TEST(Endpoint, AnInterfaceIsFoundByNameAndBoundToAlone) {
  EXPECT_EQ(*LocalAddress("lo"), "127.0.0.1");
  const auto listener = Listener::OnTcp(*LocalAddress("lo"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(absl::StartsWith(listener->endpoint(), "tcp:127.0.0.1:")) << listener->endpoint();
  EXPECT_TRUE(absl::IsInvalidArgument(Listener::OnTcp("0.0.0.0").status()));
}

TEST(FolderRendezvous, FilesAreThisUsersAndTheLastWordCounts) {
  TempFolder folder;
  const auto rendezvous = *FolderRendezvous::Open(folder.path() + "/dp");
  ASSERT_TRUE(rendezvous->Publish(3, "first").ok());
  ASSERT_TRUE(rendezvous->Publish(3, "second").ok());
  EXPECT_EQ(*rendezvous->Lookup(3), "second");
  struct stat found {};
  ASSERT_EQ(stat((folder.path() + "/dp/rank.3").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_TRUE(absl::IsInvalidArgument(rendezvous->Publish(3, std::string(513, 'x'))));
  EXPECT_TRUE(absl::IsNotFound(rendezvous->Lookup(4).status()));
}

TEST(RingCommunicator, OptionsAndPeersAreChecked) {
  const auto refused = [](int rank, int size) {
    RingPeers peers;
    peers.rank = rank;
    peers.size = size;
    return absl::IsInvalidArgument(RingCommunicator::Create(std::move(peers), {}).status());
  };
  EXPECT_TRUE(refused(1, 1));
  EXPECT_TRUE(refused(0, 2));  // not connected
  EXPECT_TRUE(absl::IsInvalidArgument(RingCommunicator::Create({}, {.max_segment = 8}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      RingCommunicator::Create({}, {.timeout = absl::ZeroDuration()}).status()));
  EXPECT_TRUE(RingCommunicator::Create({}, {.timeout = absl::InfiniteDuration()}).ok());
}

TEST(RingCommunicator, ANeighbourThatHangsUpIsNoticedBetweenLaunches) {
  for (const int dies : {1, 2}) {
    const auto ring = RingOfThreads(3);
    auto& first = dynamic_cast<RingCommunicator&>(*ring[0]);
    EXPECT_TRUE(first.WatchNeighbours(absl::Now() + absl::Milliseconds(2)).ok());
    auto watching = std::async(std::launch::async,
                               [&] { return first.WatchNeighbours(absl::InfiniteFuture()); });
    ring[static_cast<size_t>(dies)]->Abort("dies");
    EXPECT_EQ(watching.get(), absl::UnavailableError(absl::StrCat(
                                  "rank ", dies, ", the ", dies == 1 ? "right" : "left",
                                  " neighbour of rank 0, closed the connection")));
  }
}

TEST(RingCommunicator, AnAbortEndsTheWatch) {
  const auto ring = RingOfThreads(2);
  auto& first = dynamic_cast<RingCommunicator&>(*ring[0]);
  auto watching =
      std::async(std::launch::async, [&] { return first.WatchNeighbours(absl::InfiniteFuture()); });
  first.Abort("enough");
  EXPECT_EQ(watching.get(), absl::AbortedError("enough"));
}

}  // namespace
}  // namespace bucketd::agent
