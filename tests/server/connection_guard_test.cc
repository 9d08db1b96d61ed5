// The functions that hold a connection to what it may send: no gRPC, plain sockets.
#include "server/rpc/connection_guard.h"

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "server/rpc/unfinished_messages.h"
#include "tests/server/http2_frames.h"

namespace bucketd {
namespace {

// Connections over the loopback network, accepted and read as gRPC does it.
class ConnectionGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GuardConnections([this] { ++closed_; }, {room_, 3, 0});
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener_, Generic(address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_, 9), 0);
    client_ = Connect(1);
    server_ = Accept();
    ASSERT_GE(server_, 0);
  }
  void TearDown() override {
    for (const int fd : {client_, server_, listener_}) close(fd);
    GuardConnections({});
  }

  static sockaddr* Generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }
  // From 127.0.0.`host`: any address of the loopback network is another peer.
  int Connect(uint32_t host) const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host);
    EXPECT_EQ(bind(fd, Generic(from), sizeof(from)), 0);
    sockaddr_in to{};
    socklen_t length = sizeof(to);
    EXPECT_EQ(getsockname(listener_, Generic(to), &length), 0);
    EXPECT_EQ(connect(fd, Generic(to), length), 0);
    return fd;
  }
  int Accept() const { return accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC); }
  // Whether the other side has ended it, to which it said nothing.
  static bool IsOver(int fd) {
    char byte = 0;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
  }

  void Send(const std::string& bytes) const {
    const ssize_t sent = send(client_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_TRUE(sent == static_cast<ssize_t>(bytes.size()) || closed_ > 0) << "it may have heard";
  }
  // Into so many buffers of `size` bytes; what recvmsg returned.
  ssize_t Read(size_t buffers, size_t size = 7) const {
    std::vector<std::string> room(buffers, std::string(size, '\0'));
    std::vector<iovec> parts;
    parts.reserve(buffers);
    for (std::string& part : room) parts.push_back({part.data(), part.size()});
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    return recvmsg(server_, &message, 0);
  }

  // From so many buffers; what sendmsg returned.
  ssize_t Answer(std::vector<std::string> buffers) const {
    std::vector<iovec> parts;
    for (std::string& part : buffers) parts.push_back({part.data(), part.size()});
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    return sendmsg(server_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  static constexpr int64_t kCall = UnfinishedMessages::kCallBytes;
  const std::shared_ptr<ByteRoom> room_ = std::make_shared<ByteRoom>(240'000);
  int listener_ = -1;
  int client_ = -1;
  int server_ = -1;
  int closed_ = 0;
};

// More than the budget and what comes back to it while this test is held up for some seconds.
std::string Flood() { return Times(2000, Frame(kReset, 0, 4)); }

TEST_F(ConnectionGuardTest, AFloodEndsItsConnection) {
  Send(kPreface + Flood());
  EXPECT_EQ(Read(10), 70) << "what is within the budget is read";
  errno = 0;
  EXPECT_EQ(Read(1000, 40), -1);
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
  Send(Flood());
  EXPECT_EQ(Read(1000, 40), -1);
  EXPECT_EQ(closed_, 1);
}

TEST_F(ConnectionGuardTest, WhoHoldsMoreUnfinishedMessagesThanThereIsRoomForIsEnded) {
  const std::string begun =
      FrameOf(1, kHeaders, 4) + FrameOf(1, kData, 0, Message(200'000, 15'000));
  const std::string more = FrameOf(1, kData, 0, std::string(15'000, 'm'));
  Send(kPreface + begun + Times(3, more));
  EXPECT_GT(Read(9, 9000), 60'000) << "that much goes on in any case";
  EXPECT_TRUE(About(room_->used(), kCall + 7 * 9000));
  Send(more);
  EXPECT_GT(Read(9, 9000), 0);
  EXPECT_TRUE(About(room_->used(), kCall + 9 * 9000)) << "there is room";
  Send(Times(2, more));
  errno = 0;
  EXPECT_EQ(Read(9, 9000), -1) << "a host alone may have half of it, which is 120,000";
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(closed_, 1);
  close(server_);
  server_ = -1;
  EXPECT_EQ(room_->used(), 0) << "closed without a last read";
}

TEST_F(ConnectionGuardTest, WhatTheServerEndsIsGivenBack) {
  Send(kPreface + FrameOf(1, kHeaders, 4) + FrameOf(1, kData, 0, Message(200'000, 15'000)));
  EXPECT_GT(Read(9, 9000), 15'000);
  EXPECT_TRUE(About(room_->used(), kCall + 2 * 9000));
  EXPECT_GT(Answer({FrameOf(0, kSettings, 0), FrameOf(1, kHeaders, 5, "trailers")}), 0);
  EXPECT_EQ(room_->used(), 0);
}

TEST_F(ConnectionGuardTest, WhoTakesNoAnswersIsEnded) {
  std::string calls = kPreface;
  for (uint32_t stream = 1; stream < 99; stream += 2) calls += FrameOf(stream, kHeaders, 5, "call");
  Send(calls);
  EXPECT_GT(Read(9, 9000), 0);
  uint32_t stream = 1;
  for (; stream < 15; stream += 2) EXPECT_GT(Answer({FrameOf(stream, kHeaders, 4, "begun")}), 0);
  EXPECT_EQ(room_->used(), 7 * UnfinishedMessages::kAnswerBytes);
  for (; stream < 71; stream += 2) {
    EXPECT_GT(Answer({FrameOf(stream, kHeaders, 4, "begun"), FrameOf(stream, kHeaders, 5, "end")}),
              0)
        << "as many as are taken, in as many pieces";
  }
  errno = 0;
  EXPECT_EQ(Answer({FrameOf(stream, kHeaders, 4, "begun")}), -1) << "half of the room is 120,000";
  EXPECT_EQ(errno, ECONNRESET);
  Send(FrameOf(99, kHeaders, 5, "call"));
  EXPECT_EQ(Read(9, 9000), -1) << "it has ended for good";
  EXPECT_EQ(closed_, 1);
}

// Whatever its calls are answered goes nowhere, and nothing of it is seen.
TEST_F(ConnectionGuardTest, OfWhoDoesNotReadAllCallsCount) {
  Send(kPreface + FrameOf(1, kHeaders, 5, "call") + FrameOf(3, kHeaders, 5, "call"));
  EXPECT_GT(Read(9, 9000), 0);
  const std::string much = Times(1000, FrameOf(0, kPing, 1, std::string(8, 'p')));
  while (Answer({much}) > 0) continue;
  EXPECT_EQ(errno, EAGAIN) << "that much goes on in any case";
  EXPECT_EQ(room_->used(), 2 * UnfinishedMessages::kAnswerBytes);
  std::string more;
  for (uint32_t stream = 5; stream < 15; stream += 2) more += FrameOf(stream, kHeaders, 5, "call");
  Send(more);
  EXPECT_GT(Read(9, 9000), 0);
  EXPECT_EQ(room_->used(), 7 * UnfinishedMessages::kAnswerBytes);
  EXPECT_EQ(closed_, 0);
  Send(FrameOf(15, kHeaders, 5, "call"));
  EXPECT_EQ(Read(9, 9000), -1) << "half of the room is 120,000";
  EXPECT_EQ(closed_, 1);
}

// Three places, one of them taken by the fixture's own connection.
TEST_F(ConnectionGuardTest, TheNewestOfTheHostThatHasMostGivesWay) {
  const int second = Connect(2), third = Connect(2);
  const int second_here = Accept(), third_here = Accept();
  ASSERT_GE(third_here, 0);
  const int refused = Connect(2);
  EXPECT_EQ(Accept(), -1);
  EXPECT_EQ(errno, EAGAIN) << "gRPC looks for the next one";
  EXPECT_TRUE(IsOver(refused));
  EXPECT_EQ(closed_, 1);
  const int other = Connect(3);
  const int other_here = Accept();
  EXPECT_GE(other_here, 0);
  EXPECT_TRUE(IsOver(third)) << "it made room";
  EXPECT_TRUE(IsOver(third_here)) << "and gRPC reads that it did";
  EXPECT_FALSE(IsOver(second));
  EXPECT_FALSE(IsOver(client_));
  EXPECT_EQ(closed_, 2);
  close(second_here);
  const int again = Connect(2);
  const int again_here = Accept();
  EXPECT_GE(again_here, 0) << "a place that was left is free";
  for (const int fd : {second, third, third_here, refused, other, other_here, again, again_here}) {
    close(fd);
  }
}

TEST_F(ConnectionGuardTest, WithoutFilesTheListenerIsNotToldOfAnError) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int waiting = Connect(2);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(Accept(), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const int later = Accept();
  EXPECT_GE(later, 0);
  close(later);
  close(waiting);
}

}  // namespace
}  // namespace bucketd
