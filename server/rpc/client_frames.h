// What one client sends over HTTP/2, seen before gRPC sees it, and whether its connection may go
// on: frames that nobody answers are counted (frame_budget.h), and what it keeps gRPC waiting for
// is bounded (unfinished_messages.h), as are its calls: gRPC (1.51) holds a client to the number of
// streams that it announced only once the client has acknowledged it. Not thread-safe.
//
// What does not begin with a client's preface is something else, TLS for one, whose bytes would
// look like any frames: it costs nothing. An HTTP/2 library ends such a connection itself.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

#include "server/base/byte_room.h"
#include "server/base/clock.h"
#include "server/rpc/frame_budget.h"
#include "server/rpc/frame_reader.h"
#include "server/rpc/unfinished_messages.h"

namespace bucketd {

class ClientFrames {
 public:
  enum class Verdict {
    kGoOn,
    kFlood,   // more frames that nobody answers than the limits allow, or more calls than `calls`
    kNoRoom,  // more bytes than `room` has for its peer. Who has kFreeBytes of them goes on.
  };
  // What this client and all of them may have under way.
  struct Limits {
    FrameLimits frames;
    int64_t calls = 0;               // at a time; 0: not bounded
    std::shared_ptr<ByteRoom> room;  // for all clients' unfinished_messages.h; null: not bounded
  };
  ClientFrames(Limits limits, SteadyTime now, std::string peer);

  // The next bytes that came in, at the front of memory of `room` bytes that gRPC reads into. Once
  // it is not kGoOn the connection is to end.
  Verdict Received(absl::string_view bytes, size_t room, SteadyTime now);
  // The next bytes that went out; and what that comes to. `stuck`: more was to go and the client
  // does not read, so that each of its calls is kept, answered or not.
  void Sent(absl::string_view bytes);
  Verdict HasSent(bool stuck);

  static constexpr int64_t kFreeBytes = 64 << 10;

 private:
  // Takes the preface away from the front of `bytes`.
  void TakePreface(absl::string_view& bytes);
  Verdict HoldUnfinished();

  size_t preface_ = 0;    // bytes of it that have come
  bool foreign_ = false;  // no HTTP/2
  bool stuck_ = false;
  FrameReader in_, out_;
  FrameBudget budget_;
  UnfinishedMessages unfinished_;
  int64_t calls_;
  std::shared_ptr<ByteRoom> room_;  // outlives:
  ByteRoom::Held held_;
};

}  // namespace bucketd
