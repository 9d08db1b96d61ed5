// Counts the frames of one HTTP/2 connection (RFC 9113) that make work without being answered: a
// stream that is reset as soon as it is opened counts against no limit on open streams. Sees the
// bytes before the HTTP/2 library does. Not thread-safe.
//
// What does not begin with a client's preface is something else, TLS for one, whose bytes would
// look like any frames: it costs nothing. An HTTP/2 library ends such a connection itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

#include "server/base/clock.h"

namespace bucketd {

// Clients of ours reset a stream when a call is cancelled or its deadline passes: seldom.
struct FrameLimits {
  int64_t burst = 500;       // resets that may come at once
  int64_t per_second = 100;  // and how fast that many come back
};

class FrameBudget {
 public:
  FrameBudget(const FrameLimits& limits, SteadyTime now);

  // The next bytes that came in. False: more frames than the limits allow; the connection should
  // end.
  bool Take(absl::string_view bytes, SteadyTime now);

 private:
  // Takes the preface away from the front of `bytes`.
  void TakePreface(absl::string_view& bytes);
  bool Spend(int64_t cost, SteadyTime now);
  int64_t CostOfFrame() const;

  static constexpr size_t kHeaderBytes = 9;
  FrameLimits limits_;
  SteadyTime since_;      // up to when `left_` has been refilled
  int64_t left_;          // in tenths of a reset
  size_t preface_ = 0;    // bytes of it that have come
  bool foreign_ = false;  // no HTTP/2
  size_t skip_ = 0;       // bytes before the next frame's header
  size_t have_ = 0;       // bytes of that header
  std::array<unsigned char, kHeaderBytes> header_{};
};

}  // namespace bucketd
