// Everything an operator can set. Each field is a flag of bucketd; `bucketd --help` says the same.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "server/cost_options.h"
#include "server/plan_function.h"

namespace bucketd {

// Of one graph. Larger: larger models; one upload may hold that much memory, decoding a few times
// as much.
struct GraphIntakeLimits {
  int64_t max_graph_bytes = int64_t{256} << 20;  // serialised, uncompressed
  int64_t max_graph_nodes = 2'000'000;
  int64_t max_inline_bytes = int64_t{256} << 10;  // of GetPlanRequest.graph.data
  int64_t max_chunk_bytes = int64_t{1} << 20;
  int64_t max_compression_ratio = 256;  // uncompressed / compressed, beyond the first MiB
  // Of all uploads and inline graphs together, uncompressed, while they arrive and are decoded.
  int64_t max_upload_bytes = int64_t{512} << 20;
  int32_t max_uploads = 64;  // streams at a time
};

struct ServerOptions {
  std::string listen = "127.0.0.1:9460";  // unix:/path or HOST:PORT; port 0: any free one
  std::string http = "127.0.0.1:9461";    // "": no side port
  int32_t socket_mode = 0600;             // of a unix socket
  bool insecure = false;                  // allows listeners beyond loopback, which have no TLS yet
  bool reuse_port = false;                // a second server may listen on the same TCP port

  GraphIntakeLimits intake;
  int32_t upload_threads = 2;   // decode and verify graphs
  int32_t compute_slots = 0;    // plans computed at a time; 0: one a core, two at least
  int32_t compute_queue = 256;  // plans that wait for a slot
  int32_t max_waiting =
      8192;  // callers that wait for a graph or a plan; graphs that were asked for
  int64_t plan_cache_bytes = int64_t{256} << 20;
  int64_t graph_cache_bytes = int64_t{512} << 20;

  // How long a caller that was asked for a graph has to begin uploading before another is asked.
  std::chrono::milliseconds upload_lease{10'000};
  // An upload that sends nothing for this long is ended.
  std::chrono::milliseconds upload_stall{10'000};
  // What broke off is kept this long, so that it can go on where it stopped; 0: not at all.
  std::chrono::milliseconds upload_resume{60'000};
  // The longest that a caller without a deadline waits.
  std::chrono::milliseconds max_wait{600'000};
  // Drain: not ready, then `lame_duck` for load balancers to see it, then no new connections; calls
  // in flight have until `drain` after the start.
  std::chrono::milliseconds drain{15'000};
  std::chrono::milliseconds lame_duck{500};

  CostOptions costs;

  PlanFunction plan_function = ComputePlan;

  // Names the flag.
  absl::Status Validate() const;
};

bool IsUnixAddress(const std::string& address);
// Of HOST:PORT: is HOST this machine's loopback?
bool IsLoopback(const std::string& address);

}  // namespace bucketd
