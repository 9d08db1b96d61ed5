// What a client has made gRPC keep: calls whose requests have not ended, memory that holds bytes of
// messages that are not whole or came behind a call's first one, and calls whose answers have begun
// and not ended.
// gRPC gives every stream of a connection room for a whole message, so that a client who never
// sends the last bytes fills all memory there is for messages; and it keeps a call until its client
// takes the answer, which one who opens no window never does. It copies no message of more than a
// few bytes out of the memory that it has read it into, and keeps all of that, 8 or 64 KiB, while
// any message in it is kept. Not thread-safe.
//
// Sees the frames of both sides. A message is a flag, its length in four bytes, and as many bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

#include "server/rpc/frame_reader.h"

namespace bucketd {

class UnfinishedMessages {
 public:
  // The parts that follow are of `bytes`, the front of `room` bytes of memory. What is free of it
  // is read into next.
  void ReadInto(absl::string_view bytes, size_t room);
  // Of the client's frames.
  void Received(const FrameReader::Part& part);
  // Of the server's: whatever a stream has that has ended is let go.
  void Sent(const FrameHeader& frame);

  // Of messages, kCallBytes for each call whose request has not ended, and kAnswerBytes for each
  // whose answer has begun.
  int64_t bytes() const { return bytes_; }
  // What the others would take, once they are answered: kAnswerBytes each.
  int64_t bytes_unanswered() const { return kAnswerBytes * (open() - answered_); }
  // Whether nothing of it is kept: headers that open no call, or data of none that goes on.
  bool IsStray(const FrameHeader& frame) const;
  // Streams that have not ended on both sides.
  int64_t open() const { return static_cast<int64_t>(streams_.size()); }

  // Of whole messages behind the first one no stream has more: the window that gRPC gives to a
  // stream that is not read from.
  static constexpr int64_t kWindowBytes = 64 << 10;
  // What gRPC (1.51) makes of the first frame of a call: 8 to 34 KiB were measured.
  static constexpr int64_t kCallBytes = 32 << 10;
  // And of a call until its answer has been sent: 16 KiB were measured. A plan is shared.
  static constexpr int64_t kAnswerBytes = 16 << 10;
  // And of a frame of a message, beside its bytes.
  static constexpr int64_t kFrameBytes = 64;

 private:
  // Whole messages that may not have been read, one or several small ones.
  struct Behind {
    int64_t size = 0;
    int64_t kept = 0;
  };
  struct Stream {
    size_t prefix = 0;    // bytes of the flag and the length that have come
    uint32_t length = 0;  // as far as it has come
    uint32_t left = 0;    // bytes of the message that have not
    int64_t partial = 0;  // what is kept of those that have
    uint64_t memory = 0;  // that the last of them came into; 0: none has come
    int64_t room = 0;     // of that memory, for more of the message
    std::vector<Behind> behind;
    bool first = true;
    bool ended = false;     // by its client
    bool answered = false;  // begun to be
  };
  using Streams = absl::flat_hash_map<uint32_t, Stream>;

  void Take(Stream& stream, absl::string_view data);
  void Keep(Stream& stream, int64_t bytes);
  void WholeMessage(Stream& stream);
  void PutBehind(std::vector<Behind>& behind, int64_t size, int64_t kept);
  bool Opens(const FrameHeader& frame) const;
  void Opened(const FrameHeader& frame);
  void EndedByClient(uint32_t stream);
  void Forget(Streams::iterator stream);

  int64_t bytes_ = 0;
  int64_t answered_ = 0;        // streams whose answer has begun
  uint64_t memory_ = 1;         // which one the parts come from
  int64_t memory_bytes_ = 0;    // its size
  const char* free_ = nullptr;  // where it goes on; null: it is full
  size_t left_ = 0;             // of the frame that is being read
  uint32_t last_ = 0;           // that was opened: of those before it none is opened again
  Streams streams_;
};

}  // namespace bucketd
