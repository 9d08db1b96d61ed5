// What a client may send, and the functions that hold a connection to it: no gRPC, plain sockets.
#include "server/rpc/connection_guard.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "server/rpc/client_frames.h"
#include "server/rpc/unfinished_messages.h"

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
  kWindow = 8,
  kContinuation = 9
};
constexpr unsigned char kEndStreamFlag = 1;

std::string Frame(Kind kind, unsigned char flags, size_t size) {
  std::string frame(9 + size, '\x55');
  frame[0] = static_cast<char>(size >> 16);
  frame[1] = static_cast<char>(size >> 8);
  frame[2] = static_cast<char>(size);
  frame[3] = static_cast<char>(kind);
  frame[4] = static_cast<char>(flags);
  return frame;
}

// `stream` in its header, and `payload` behind that.
std::string FrameOf(uint32_t stream, Kind kind, unsigned char flags,
                    const std::string& payload = "") {
  std::string frame = Frame(kind, flags, payload.size()).replace(9, payload.size(), payload);
  for (size_t i = 0; i < 4; ++i) frame[5 + i] = static_cast<char>(stream >> (24 - 8 * i));
  return frame;
}

// As gRPC frames it: `size` bytes, of which `sent` come.
std::string Message(size_t size, size_t sent) {
  std::string message(5 + sent, 'm');
  message[0] = 0;
  for (size_t i = 0; i < 4; ++i) message[1 + i] = static_cast<char>(size >> (24 - 8 * i));
  return message;
}

// But for what some frames cost beside their bytes.
bool About(int64_t bytes, int64_t expected) { return bytes >= expected && bytes < expected + 300; }

std::string Times(int n, const std::string& frame) {
  std::string out;
  for (int i = 0; i < n; ++i) out += frame;
  return out;
}

class FrameBudgetTest : public ::testing::Test {
 protected:
  static constexpr FrameLimits kLimits{10, 5};
  const SteadyTime start_ = std::chrono::steady_clock::now();

  ClientFrames NewClient() const { return ClientFrames({kLimits, 0, nullptr}, start_, ""); }
  bool Take(ClientFrames& client, absl::string_view bytes, int64_t after_ms = 0) const {
    return client.Received(bytes, bytes.size(), start_ + milliseconds(after_ms)) ==
           ClientFrames::Verdict::kGoOn;
  }
};

TEST_F(FrameBudgetTest, ResetsAreBoundedAndComeBackWithTime) {
  const std::string reset = Frame(kReset, 0, 4);
  const auto allowed = [&](int64_t after_ms) {  // beyond the burst, so much later
    ClientFrames client = NewClient();
    EXPECT_TRUE(Take(client, kPreface + Times(10, reset)));
    int more = 0;
    while (Take(client, reset, after_ms)) ++more;
    return more;
  };
  EXPECT_EQ(allowed(0), 0);
  EXPECT_EQ(allowed(1000), 5);
  EXPECT_EQ(allowed(1999), 9);
  EXPECT_EQ(allowed(100'000), 11) << "the burst, and the one that found nothing left";
}

TEST_F(FrameBudgetTest, WhatAsksForWorkAndNoAnswerIsATenth) {
  for (const std::string& frame :
       {Frame(kPing, 0, 8), Frame(kPing, 1, 8), Frame(kSettings, 0, 0), Frame(kSettings, 1, 0),
        FrameOf(1, kData, 0), Frame(kPriority, 0, 5)}) {
    ClientFrames client = NewClient();
    EXPECT_TRUE(Take(client, kPreface + FrameOf(1, kHeaders, 4, "block") + Times(100, frame)));
    EXPECT_FALSE(Take(client, frame)) << int{frame[3]};
  }
}

// A client that did not know yet that its call was refused has sent more of its message.
TEST_F(FrameBudgetTest, AWindowUpdateOrDataOfNoCallIsAHundredth) {
  const std::string over = FrameOf(1, kHeaders, 5, "block");
  for (const std::string& frame : {Frame(kWindow, 0, 4), FrameOf(1, kData, 0, "late"),
                                   FrameOf(1, kData, 1), FrameOf(7, kData, 0, "of none")}) {
    ClientFrames client = NewClient();
    EXPECT_TRUE(Take(client, kPreface + over + Times(1000, frame)));
    EXPECT_FALSE(Take(client, frame)) << int{frame[3]};
  }
}

TEST_F(FrameBudgetTest, HeadersThatOpenNoCallAreAsResets) {
  const std::string call = FrameOf(3, kHeaders, 4, "block");
  for (const std::string& frame :
       {FrameOf(3, kHeaders, 4, "again"), FrameOf(1, kHeaders, 4, "too late"),
        FrameOf(0, kHeaders, 4, "of none"), FrameOf(6, kHeaders, 4, "a server's"),
        FrameOf(3, kContinuation, 0, "more")}) {
    ClientFrames client = NewClient();
    EXPECT_TRUE(Take(client, kPreface + call + Times(10, frame)));
    EXPECT_FALSE(Take(client, frame)) << int{frame[3]} << " of " << int{frame[8]};
  }
}

// gRPC reads what has come of a header anew with each piece of it.
TEST_F(FrameBudgetTest, TheHeadersOfACallAreBounded) {
  const std::string most(FrameBudget::kMostHeaderBytes, 'h');
  ClientFrames client = NewClient();
  EXPECT_TRUE(Take(client, kPreface + FrameOf(1, kHeaders, 5, most)));
  EXPECT_TRUE(Take(
      client, FrameOf(3, kHeaders, 1, most.substr(9)) + FrameOf(3, kContinuation, 4, "last one.")));
  EXPECT_FALSE(Take(client, FrameOf(3, kContinuation, 4, "1")));
  ClientFrames other = NewClient();
  EXPECT_FALSE(Take(other, kPreface + Frame(kHeaders, 5, most.size() + 1).substr(0, 9)));
}

TEST_F(FrameBudgetTest, CallsAndTheirContentAreFree) {
  ClientFrames client = NewClient();
  EXPECT_TRUE(Take(client, kPreface));
  for (uint32_t stream = 1; stream < 10'000; stream += 2) {
    const std::string call = FrameOf(stream, kHeaders, 4, "block") +
                             FrameOf(stream, kData, 0, Message(4, 4)) + FrameOf(stream, kData, 1);
    ASSERT_TRUE(Take(client, call)) << stream;
  }
}

// gRPC looks at how many there are once its client has acknowledged how many there may be.
TEST_F(FrameBudgetTest, CallsAtATimeAreBoundedWhoeverEndsThem) {
  ClientFrames client({kLimits, 3, nullptr}, start_, "");
  const auto call = [](uint32_t stream) { return FrameOf(stream, kHeaders, 4, "block"); };
  const auto whole = [](uint32_t stream) { return FrameOf(stream, kHeaders, 5, "block"); };
  EXPECT_TRUE(Take(client, kPreface + call(1) + whole(3) + call(5)));
  client.Sent(FrameOf(3, kHeaders, 5, "trailers"));
  EXPECT_TRUE(Take(client, call(7)));
  EXPECT_TRUE(Take(client, FrameOf(5, kReset, 0, "why?") + call(9)));
  EXPECT_TRUE(Take(client, FrameOf(1, kHeaders, 5, "trailers"))) << "which opens none";
  EXPECT_FALSE(Take(client, whole(11))) << "1 waits for its answer";
}

TEST_F(FrameBudgetTest, FramesCountHoweverTheirBytesAreCut) {
  const std::string bytes = kPreface + FrameOf(1, kHeaders, 4, std::string(77, 'h')) +
                            FrameOf(3, kHeaders, 4, "h") + Times(11, Frame(kReset, 0, 4));
  for (size_t step = 1; step < 40; ++step) {
    ClientFrames client = NewClient();
    bool within = true;
    for (size_t at = 0; at < bytes.size() && within; at += step) {
      within = Take(client, absl::string_view(bytes).substr(at, step));
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
      ClientFrames client = NewClient();
      for (size_t at = 0; at < bytes.size(); at += step) {
        ASSERT_TRUE(Take(client, absl::string_view(bytes).substr(at, step))) << wrong;
      }
    }
  }
  ClientFrames client = NewClient();
  EXPECT_FALSE(Take(client, preface + flood));
}

// ---- messages that are not whole

class UnfinishedTest : public ::testing::Test {
 protected:
  // In pieces of `step` bytes: what is unfinished then.
  int64_t After(const std::string& bytes, size_t step = 7) {
    FrameReader::Part part;
    for (size_t at = 0; at < bytes.size(); at += step) {
      absl::string_view piece = absl::string_view(bytes).substr(at, step);
      while (in_.Next(piece, part)) unfinished_.Received(part);
    }
    return unfinished_.bytes();
  }
  // All of them at once, at the front of memory of `room` bytes.
  int64_t AfterInto(absl::string_view bytes, size_t room) {
    unfinished_.ReadInto(bytes, room);
    FrameReader::Part part;
    while (in_.Next(bytes, part)) unfinished_.Received(part);
    return unfinished_.bytes();
  }
  static constexpr int64_t kCall = UnfinishedMessages::kCallBytes;
  static constexpr int64_t kFrame = UnfinishedMessages::kFrameBytes;
  static constexpr int64_t kAnswer = UnfinishedMessages::kAnswerBytes;
  int64_t AfterSent(const std::string& bytes) {
    FrameReader::Part part;
    absl::string_view rest = bytes;
    while (out_.Next(rest, part)) {
      if (part.begins) unfinished_.Sent(part.frame);
    }
    return unfinished_.bytes();
  }

  UnfinishedMessages unfinished_;
  FrameReader in_, out_;
};

TEST_F(UnfinishedTest, BytesCountUntilTheirMessageIsWhole) {
  EXPECT_EQ(After(FrameOf(1, kHeaders, 4, "block")), kCall);
  EXPECT_EQ(After(FrameOf(1, kData, 0, Message(100, 40))), kCall + kFrame + 45);
  EXPECT_EQ(After(FrameOf(3, kHeaders, 4, "block") + FrameOf(3, kData, 0, Message(9, 3))),
            2 * (kCall + kFrame) + 53);
  EXPECT_EQ(After(FrameOf(1, kData, 0, std::string(59, 'm'))), 2 * kCall + 3 * kFrame + 112);
  EXPECT_EQ(After(FrameOf(1, kData, 0, "m")), 2 * kCall + kFrame + 8) << "that of stream 3";
  EXPECT_EQ(After(FrameOf(3, kData, kEndStreamFlag)), kCall) << "cut off by its client";
  EXPECT_EQ(After(FrameOf(3, kData, kEndStreamFlag)), kCall) << "which ends once";
}

TEST_F(UnfinishedTest, WhatIsWholeAtOnceNeverCounts) {
  for (uint32_t stream = 1; stream < 9; stream += 2) {
    EXPECT_EQ(After(FrameOf(stream, kHeaders, 4, "block") +
                    FrameOf(stream, kData, kEndStreamFlag, Message(300, 300))),
              0);
  }
  EXPECT_EQ(After(FrameOf(101, kHeaders, 4, "block") + FrameOf(101, kData, 0, Message(0, 0))),
            kCall)
      << "the message is; the call may have another one";
}

TEST_F(UnfinishedTest, AStreamThatEndsOnEitherSideIsLetGo) {
  const auto begun = [](uint32_t stream) {
    return FrameOf(stream, kHeaders, 4) + FrameOf(stream, kData, 0, Message(100, 40));
  };
  EXPECT_EQ(After(begun(1)), kCall + kFrame + 45);
  EXPECT_EQ(After(FrameOf(1, kReset, 0, "why?")), 0);
  EXPECT_EQ(After(begun(1)), 0) << "a stream is opened once";
  uint32_t stream = 1;
  for (const auto& [kind, flags] : {std::pair(kReset, 0), {kHeaders, 5}, {kData, 1}}) {
    stream += 2;
    EXPECT_EQ(After(begun(stream)), kCall + kFrame + 45);
    EXPECT_EQ(AfterSent(FrameOf(stream, kHeaders, 4, "block") + FrameOf(stream, kData, 0, "some")),
              kCall + kFrame + 45 + kAnswer);
    EXPECT_EQ(AfterSent(FrameOf(stream, kind, static_cast<unsigned char>(flags), "last")), 0);
    EXPECT_EQ(unfinished_.open(), 0);
    EXPECT_EQ(After(FrameOf(stream, kData, 0, std::string(60, 'm'))), 0) << "nobody keeps that";
  }
}

// A call that reads one message leaves the others in the window of its stream.
TEST_F(UnfinishedTest, WhatComesBehindTheFirstMessageCountsUpToTheWindow) {
  EXPECT_EQ(After(FrameOf(1, kHeaders, 4) + FrameOf(1, kData, 0, Message(500, 500))), kCall);
  EXPECT_EQ(After(FrameOf(1, kData, 0, Message(95, 95))), kCall + kFrame + 100);
  EXPECT_EQ(After(FrameOf(1, kData, 0, Times(1000, Message(95, 95)))), kCall + 61 * 1100)
      << "eleven count as one";
  EXPECT_EQ(After(FrameOf(1, kData, kEndStreamFlag)), 61 * 1100) << "they may still be unread";
  EXPECT_EQ(AfterSent(FrameOf(1, kHeaders, 5, "trailer")), 0);
  EXPECT_EQ(After(FrameOf(3, kHeaders, 4) + FrameOf(3, kData, 0, Times(2, Message(5, 5)))),
            kCall + 10);
  EXPECT_TRUE(About(After(FrameOf(3, kData, 0, Message(1 << 20, 1 << 20))),
                    kCall + 10 + UnfinishedMessages::kWindowBytes))
      << "the rest of it has been read, or it would not have come";
}

// Whatever else is in it, for as long as anything of the message is kept.
TEST_F(UnfinishedTest, AMessageKeepsTheMemoryThatItCameInto) {
  constexpr size_t kMemory = 8192;
  const std::string junk = FrameOf(99, kData, 0, std::string(4000, 'j'));
  std::string memory;
  memory.reserve(kMemory);  // it stays where it is
  memory += FrameOf(1, kHeaders, 4) + FrameOf(1, kData, 0, Message(500, 30)) + junk;
  EXPECT_EQ(AfterInto(memory, kMemory), kCall + 8192);
  const size_t at = memory.size();
  memory += FrameOf(1, kData, 0, std::string(30, 'm'));
  EXPECT_EQ(AfterInto(absl::string_view(memory).substr(at), kMemory - at), kCall + 8192)
      << "what is free of it is read into next";
  const std::string other = FrameOf(1, kData, 0, std::string(30, 'm')) + junk;
  EXPECT_EQ(AfterInto(other, kMemory), kCall + 2 * 8192);
  EXPECT_EQ(AfterInto(junk, kMemory), kCall + 2 * 8192);
  EXPECT_EQ(After(FrameOf(1, kData, 0, std::string(410, 'm')), 1000), kCall) << "it is whole";
  for (int i = 1; i < 9; ++i) {
    const std::string behind = FrameOf(1, kData, 0, Message(2000, 2000)) + junk;
    EXPECT_EQ(AfterInto(behind, kMemory), kCall + i * 8192);
  }
  EXPECT_EQ(After(FrameOf(1, kReset, 0, "why?")), 0);
}

// A call that waits is in the places of those who wait; one that has its answer is not.
TEST_F(UnfinishedTest, AnAnswerThatHasBegunCountsUntilItEnds) {
  const auto asked = [](uint32_t stream) { return FrameOf(stream, kHeaders, 5, "block"); };
  EXPECT_EQ(After(asked(1) + asked(3) + asked(5)), 0);
  EXPECT_EQ(AfterSent(FrameOf(1, kHeaders, 4, "block")), kAnswer);
  EXPECT_EQ(AfterSent(FrameOf(1, kData, 0, "some")), kAnswer);
  EXPECT_EQ(AfterSent(FrameOf(3, kHeaders, 4, "block")), 2 * kAnswer);
  EXPECT_EQ(AfterSent(FrameOf(5, kHeaders, 5, "refused")), 2 * kAnswer);
  EXPECT_EQ(AfterSent(FrameOf(1, kData, 0, "more") + FrameOf(1, kHeaders, 5, "trailers")), kAnswer);
  EXPECT_EQ(After(FrameOf(3, kReset, 0, "why?")), 0);
  EXPECT_EQ(AfterSent(FrameOf(7, kHeaders, 4, "block")), 0) << "of no call";
}

TEST_F(UnfinishedTest, DataOfNoStreamCountsNowhere) {
  EXPECT_EQ(After(FrameOf(7, kData, 0, Message(100, 40))), 0);
  EXPECT_EQ(After(FrameOf(9, kHeaders, 5, "block") + FrameOf(9, kData, 0, Message(100, 40))), 0);
}

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
