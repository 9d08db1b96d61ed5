// What the clients of bucketd's services can be told, and what they count.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "client/circuit_breaker.h"
#include "client/client_tls.h"

namespace bucketd::client {

struct ClientOptions {
  std::string tenant;
  // Until a server that nobody can reach is an error.
  std::chrono::milliseconds connect_timeout{20'000};
  // The same for the breaker's probe of an address that was given up.
  std::chrono::milliseconds probe_timeout{2'000};
  BreakerOptions breaker;
  // Gets one line for each cause of a degraded answer, until the address answers again. Called by
  // any thread. Empty: lines go to stderr.
  std::function<void(absl::string_view line)> log;
  // Not shared with other clients of this process.
  bool own_connection = false;
  ClientTls tls;
};

// Since the client was made. Every degraded answer counts once.
struct ClientCounters {
  int64_t retries = 0;          // calls asked again because the server had gone away
  int64_t moves = 0;            // calls that went on to another server of the address
  int64_t waits = 0;            // pauses that an overloaded or draining server asked for
  int64_t breaker_opens = 0;    // times that the address was given up, or once more after a probe
  int64_t fast_failures = 0;    // calls refused while it was
  int64_t uploads = 0;          // that began
  int64_t resumed_uploads = 0;  // of them, that went on where a broken one stopped
};

}  // namespace bucketd::client
