// What a client may send, by its frames alone: how many, and what is unfinished of them.
#include "server/rpc/client_frames.h"

#include <chrono>
#include <string>

#include "gtest/gtest.h"

#include "server/rpc/unfinished_messages.h"
#include "tests/server/http2_frames.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;

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

}  // namespace
}  // namespace bucketd
