// The budget of frames, and the two functions that hold a connection to it: no gRPC, plain sockets.
#include "server/rpc/connection_guard.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include <netinet/in.h>
#include <sys/socket.h>

#include "server/rpc/frame_budget.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum Kind : unsigned char {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindow = 8
};

std::string Frame(Kind kind, unsigned char flags, size_t size) {
  std::string frame(9 + size, '\x55');
  frame[0] = 0;
  frame[1] = static_cast<char>(size >> 8);
  frame[2] = static_cast<char>(size);
  frame[3] = static_cast<char>(kind);
  frame[4] = static_cast<char>(flags);
  return frame;
}

std::string Times(int n, const std::string& frame) {
  std::string out;
  for (int i = 0; i < n; ++i) out += frame;
  return out;
}

class FrameBudgetTest : public ::testing::Test {
 protected:
  static constexpr FrameLimits kLimits{10, 5};
  const SteadyTime start_ = std::chrono::steady_clock::now();
  FrameBudget budget_{kLimits, start_};

  bool Take(const std::string& bytes, int64_t after_ms = 0) {
    return budget_.Take(bytes, start_ + milliseconds(after_ms));
  }
};

TEST_F(FrameBudgetTest, ResetsAreBoundedAndComeBackWithTime) {
  const std::string reset = Frame(kReset, 0, 4);
  const auto allowed = [&](int64_t after_ms) {  // beyond the burst, so much later
    FrameBudget budget(kLimits, start_);
    EXPECT_TRUE(budget.Take(kPreface + Times(10, reset), start_));
    int more = 0;
    while (budget.Take(reset, start_ + milliseconds(after_ms))) ++more;
    return more;
  };
  EXPECT_EQ(allowed(0), 0);
  EXPECT_EQ(allowed(1000), 5);
  EXPECT_EQ(allowed(1999), 9);
  EXPECT_EQ(allowed(100'000), 11) << "the burst, and the one that found nothing left";
}

TEST_F(FrameBudgetTest, WhatAsksForWorkAndNoAnswerIsATenth) {
  for (const std::string& frame :
       {Frame(kPing, 0, 8), Frame(kSettings, 0, 0), Frame(kData, 0, 0), Frame(kPriority, 0, 5)}) {
    FrameBudget budget(kLimits, start_);
    EXPECT_TRUE(budget.Take(kPreface + Times(100, frame), start_));
    EXPECT_FALSE(budget.Take(frame, start_)) << int{frame[3]};
  }
}

TEST_F(FrameBudgetTest, CallsTheirContentAndAnswersAreFree) {
  EXPECT_TRUE(Take(kPreface));
  for (const std::string& frame :
       {Frame(kHeaders, 5, 40), Frame(kData, 0, 1000), Frame(kData, 1, 0), Frame(kWindow, 0, 4),
        Frame(kPing, 1, 8), Frame(kSettings, 1, 0)}) {
    EXPECT_TRUE(Take(Times(5000, frame))) << int{frame[3]};
  }
}

TEST_F(FrameBudgetTest, FramesCountHoweverTheirBytesAreCut) {
  const std::string bytes =
      kPreface + Times(3, Frame(kHeaders, 4, 77)) + Times(11, Frame(kReset, 0, 4));
  for (size_t step = 1; step < 40; ++step) {
    FrameBudget budget(kLimits, start_);
    bool within = true;
    for (size_t at = 0; at < bytes.size() && within; at += step) {
      within = budget.Take(absl::string_view(bytes).substr(at, step), start_);
      // The last reset's header is what is too much.
      EXPECT_EQ(within, at + step < bytes.size() - 4) << step << " at " << at;
    }
    EXPECT_FALSE(within) << step;
  }
}

TEST_F(FrameBudgetTest, WhatDoesNotBeginAsHttp2DoesIsNotCounted) {
  const std::string preface = kPreface;
  const std::string flood = Times(1000, Frame(kReset, 0, 4));
  for (size_t wrong = 0; wrong < preface.size(); ++wrong) {
    for (const size_t step : {size_t{1}, size_t{5}, size_t{10'000}}) {
      std::string bytes = preface;
      bytes[wrong] = '\x16';  // as TLS begins
      bytes += flood;
      FrameBudget budget(kLimits, start_);
      for (size_t at = 0; at < bytes.size(); at += step) {
        ASSERT_TRUE(budget.Take(absl::string_view(bytes).substr(at, step), start_)) << wrong;
      }
    }
  }
  EXPECT_FALSE(Take(preface + flood));
}

// A connection over the loopback network, accepted and read as gRPC does it.
class ConnectionGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GuardConnections([this] { ++closed_; });
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(bind(listener, generic, length), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    ASSERT_EQ(getsockname(listener, generic, &length), 0);
    client_ = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(client_, generic, length), 0);
    server_ = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(server_, 0);
    close(listener);
  }
  void TearDown() override {
    close(client_);
    close(server_);
    GuardConnections({});
  }

  void Send(const std::string& bytes) const {
    ASSERT_EQ(send(client_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  // Into so many buffers of 7 bytes; what recvmsg returned.
  ssize_t Read(size_t buffers) const {
    std::vector<std::array<char, 7>> room(buffers);
    std::vector<iovec> parts;
    parts.reserve(buffers);
    for (std::array<char, 7>& part : room) parts.push_back({part.data(), part.size()});
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    return recvmsg(server_, &message, 0);
  }

  int client_ = -1;
  int server_ = -1;
  int closed_ = 0;
};

TEST_F(ConnectionGuardTest, AFloodEndsItsConnection) {
  Send(kPreface + Times(501, Frame(kReset, 0, 4)));
  EXPECT_EQ(Read(10), 70) << "what is within the budget is read";
  errno = 0;
  EXPECT_EQ(Read(1000), -1);
  EXPECT_EQ(errno, ECONNRESET);
  for (int i = 0; i < 3; ++i) {
    Send(Frame(kHeaders, 5, 40));
    EXPECT_EQ(Read(1000), -1) << "it has ended for good: gRPC asks again";
  }
  EXPECT_EQ(closed_, 1);
}

TEST_F(ConnectionGuardTest, AReadIntoNoBufferIsNotTheEndOfAConnection) {
  Send(kPreface);
  EXPECT_EQ(Read(0), 0);
  Send(Times(501, Frame(kReset, 0, 4)));
  EXPECT_EQ(Read(1000), -1);
  EXPECT_EQ(closed_, 1);
}

}  // namespace
}  // namespace bucketd
