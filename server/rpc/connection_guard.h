// Ends connections that flood their server with HTTP/2 frames, before gRPC has seen the frames, or
// that make it keep more of unfinished messages and answers than there is room for.
//
// gRPC (1.51) makes a call of every stream, also of one that is reset with the next frame, and has
// no limit for that; nor for answers that are not taken; nor for messages whose last byte never
// comes: where they have used up its quota of memory it closes other people's connections. It
// offers no place to look at bytes either, so this file defines `accept4`, `recvmsg`, `sendmsg` and
// `close`, which gRPC's shared library then calls in place of the C library's: they do the same and
// count. What else calls them is not affected: a socket counts if it was accepted, and is read by
// recvmsg.
//
// It counts what it can read: connections that do not begin as HTTP/2 does are left alone. Behind
// TLS the same frames are counted where they are decrypted, in session_guard.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "server/base/byte_room.h"
#include "server/rpc/frame_budget.h"

namespace bucketd {

// Of connections from an address that has flooded within the last minute: those of others at the
// same address work on, and who comes back with the flood does little.
inline constexpr FrameLimits kSuspectLimits{20, 100};

struct ConnectionLimits {
  std::shared_ptr<ByteRoom> unfinished;  // of messages and answers; null: not bounded
  int64_t connections = 0;               // at a time; 0: not bounded
  int64_t calls = 0;                     // of one of them at a time; 0: not bounded
};

// From here on connections of this process are looked at; `on_closed` is called for each that is
// ended or refused, on any thread, until the next call of this. Naming this function is what links
// the file.
void GuardConnections(std::function<void()> on_closed, ConnectionLimits limits = {});

}  // namespace bucketd
