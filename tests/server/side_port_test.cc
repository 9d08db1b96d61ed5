// The side port under clients that send half a request, drip it, or do not read the answer.
#include "server/process/side_port.h"

#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/counter.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "httplib.h"
#include "server/process/connections.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

class SidePortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SidePort::Handlers handlers;
    handlers.not_ready = [] { return ""; };
    handlers.degraded = [] { return ""; };
    handlers.pages = {{"/",
                       [](const auto&) {
                         return SidePort::Answer{"<p>page", {}, 5};
                       }},
                      {"/stuck",
                       [this](const auto&) {
                         go_on_.WaitForNotification();
                         return SidePort::Answer{"done"};
                       }},
                      {"/large", [](const auto&) {
                         return SidePort::Answer{std::string(size_t{32} << 20, 'x')};
                       }}};
    absl::StatusOr<std::unique_ptr<SidePort>> started =
        SidePort::Start("127.0.0.1:0", registry_, std::move(handlers));
    ASSERT_TRUE(started.ok()) << started.status();
    port_ = *std::move(started);
  }
  void TearDown() override {
    if (!go_on_.HasBeenNotified()) go_on_.Notify();
    for (const int socket : sockets_) close(socket);
  }

  int PortNumber() const {
    return std::stoi(port_->address().substr(port_->address().rfind(':') + 1));
  }
  // A client that has sent this much.
  int Client(const std::string& sent) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(PortNumber()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(send(fd, sent.data(), sent.size(), MSG_NOSIGNAL), static_cast<ssize_t>(sent.size()));
    sockets_.push_back(fd);
    return fd;
  }
  void Clients(int count, const std::string& sent) {
    for (int i = 0; i < count; ++i) Client(sent);
  }
  httplib::Result Get(const std::string& path, const httplib::Headers& headers = {}) const {
    httplib::Client client("127.0.0.1", PortNumber());
    client.set_read_timeout(20);
    return client.Get(path, headers);
  }
  // The slowest of some.
  milliseconds SlowestReady() const {
    milliseconds slowest{0};
    for (int i = 0; i < 20; ++i) {
      const auto begin = Clock::now();
      const httplib::Result ready = Get("/readyz");
      EXPECT_TRUE(ready && ready->body == "ok\n") << (ready ? ready->body : "no answer");
      slowest = std::max(slowest, std::chrono::ceil<milliseconds>(Clock::now() - begin));
    }
    return slowest;
  }
  // Until the other side closes; what it said.
  static std::string ReadAll(int socket) {
    std::string all;
    char bytes[4096];
    ssize_t got = 0;
    while ((got = recv(socket, bytes, sizeof(bytes), 0)) > 0) {
      all.append(bytes, static_cast<size_t>(got));
    }
    return all;
  }

  prometheus::Registry registry_;
  absl::Notification go_on_;
  std::vector<int> sockets_;
  std::unique_ptr<SidePort> port_;
};

// A loaded machine under a sanitizer gets some slack.
constexpr milliseconds kAtOnce{1500};

class ManyClientsTest : public SidePortTest, public ::testing::WithParamInterface<int> {};

TEST_P(ManyClientsTest, HealthAnswersWhileTheyHaveSentNothing) {
  Clients(GetParam(), "");
  EXPECT_LT(SlowestReady(), kAtOnce);
}

TEST_P(ManyClientsTest, HealthAnswersWhileTheyHaveSentHalfARequest) {
  Clients(GetParam(), "GET /readyz HTTP/1.1\r\nHost: x\r\n");
  EXPECT_LT(SlowestReady(), kAtOnce);
}

TEST_P(ManyClientsTest, HealthAnswersWhilePagesAreStuckAndMoreOfThemAreBusy) {
  Clients(GetParam(), "GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_LT(SlowestReady(), kAtOnce);
  if (GetParam() > static_cast<int>(Connections::kMaxWorking)) {
    const httplib::Result busy = Get("/");
    ASSERT_TRUE(busy);
    EXPECT_EQ(busy->status, 503);
  }
  go_on_.Notify();
  EXPECT_THAT(ReadAll(sockets_[0]), ::testing::EndsWith("done"));
}

TEST_P(ManyClientsTest, HealthAnswersWhileNobodyReadsLargePages) {
  Clients(std::min(GetParam(), 8), "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_LT(SlowestReady(), kAtOnce);
}

INSTANTIATE_TEST_SUITE_P(Clients, ManyClientsTest, ::testing::Values(8, 64, 512));

TEST_F(SidePortTest, ADripDoesNotMoveTheEndOfARequestsTime) {
  const auto begin = Clock::now();
  const int socket = Client("GET /readyz HTTP/1.1\r\n");
  // Until the other side has had enough.
  while (send(socket, "a", 1, MSG_NOSIGNAL) == 1) {
    std::this_thread::sleep_for(milliseconds(50));
    ASSERT_LT(Clock::now() - begin, 3 * Connections::kHeadTime);
  }
  EXPECT_GE(Clock::now() - begin, Connections::kHeadTime);
}

TEST_F(SidePortTest, ARequestThatNeverEndsIsCutOff) {
  const int socket = Client("GET / HTTP/1.1\r\n");
  const std::string header = "X-Header: of-no-importance\r\n";
  size_t sent = 0;
  const auto begin = Clock::now();
  while (send(socket, header.data(), header.size(), MSG_NOSIGNAL) > 0) {
    ASSERT_LT(sent += header.size(), size_t{1} << 20);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_LT(Clock::now() - begin, Connections::kHeadTime);
}

TEST_F(SidePortTest, ARequestInPiecesIsAnswered) {
  const int socket = Client("GET /re");
  for (const std::string piece : {"adyz HTTP/1.1\r", "\nHost: x\r\n\r", "\n"}) {
    std::this_thread::sleep_for(milliseconds(20));
    ASSERT_GT(send(socket, piece.data(), piece.size(), MSG_NOSIGNAL), 0);
  }
  const std::string answer = ReadAll(socket);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\nok\n"));
}

TEST_F(SidePortTest, ALargePageIsReadWholeHoweverLate) {
  const httplib::Result large = Get("/large");
  ASSERT_TRUE(large);
  EXPECT_EQ(large->body.size(), size_t{32} << 20);
}

TEST_F(SidePortTest, NoAnswerMayRunScriptsBeGuessedAtOrFramed) {
  for (const char* path : {"/", "/readyz", "/metrics", "/nowhere"}) {
    const httplib::Result answer = Get(path);
    ASSERT_TRUE(answer) << path;
    EXPECT_THAT(answer->get_header_value("Content-Security-Policy"),
                StartsWith("default-src 'none'; "));
    EXPECT_THAT(answer->get_header_value("Content-Security-Policy"),
                HasSubstr("frame-ancestors 'none'"));
    EXPECT_EQ(answer->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(answer->get_header_value("X-Frame-Options"), "DENY");
  }
  EXPECT_EQ(Get("/")->get_header_value("Refresh"), "5");
  EXPECT_EQ(Get("/nowhere")->status, 404);
  EXPECT_EQ(Get("/nowhere")->body,
            "there is no such page; here are /metrics /livez /readyz / /stuck /large\n");
}

TEST_F(SidePortTest, APageIsNotRepeatedInRanges) {
  std::string ranges = "bytes=0-";
  for (int i = 0; i < 1000; ++i) ranges += ",0-";
  const httplib::Result answer = Get("/", {{"Range", ranges}});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "<p>page");
}

TEST_F(SidePortTest, ListensOnIpv6) {
  const int socket = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool is_here =
      bind(socket, reinterpret_cast<const sockaddr*>(&loopback), sizeof(loopback)) == 0;
  close(socket);
  if (!is_here) GTEST_SKIP() << "this machine has no IPv6";
  const auto started =
      SidePort::Start("[::1]:0", registry_,
                      {.not_ready = [] { return ""; }, .degraded = [] { return ""; }, .pages = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT((*started)->address(), StartsWith("[::1]:"));
  httplib::Client client("::1", std::stoi((*started)->address().substr(6)));
  const httplib::Result answer = client.Get("/livez");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "ok\n");
}

TEST_F(SidePortTest, WhatIsNoRequestIsRefused) {
  EXPECT_THAT(ReadAll(Client("nonsense\r\n\r\n")), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ReadAll(Client("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")),
              StartsWith("HTTP/1.1 4"));
  EXPECT_EQ(ReadAll(Client("\r\n\r\n")).find("200"), std::string::npos);
}

}  // namespace
}  // namespace bucketd
