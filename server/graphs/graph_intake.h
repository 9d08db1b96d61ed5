// How a graph gets in: announced, decoded within bounds, parsed, and found to have the digest that
// was announced. Uploads and inline graphs go the same way. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "passes/base/digest.h"
#include "server/base/byte_room.h"
#include "server/base/metrics.h"
#include "server/config/options.h"
#include "server/graphs/graph_decoder.h"
#include "server/graphs/graph_store.h"

namespace bucketd {

// A graph that rode along with a call, still encoded.
struct InlineGraph {
  int codec = 0;  // v1::Codec
  int64_t size = 0;
  std::string data;
  ByteRoom::Held held;
};

class GraphIntake {
 public:
  // Bytes that are being held for one graph; gives them back when it dies. Not thread-safe.
  class Reservation {
   public:
    ~Reservation();
    // OVERLOADED if all graphs that arrive now would hold more than max_upload_bytes; then nothing
    // has changed.
    absl::Status GrowTo(int64_t bytes);
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

   private:
    friend class GraphIntake;
    explicit Reservation(GraphIntake& intake) : intake_(intake) {}
    GraphIntake& intake_;
    int64_t bytes_ = 0;
  };

  // `metrics` outlives this; this outlives its reservations.
  GraphIntake(const GraphIntakeLimits& limits, ServerMetrics& metrics)
      : limits_(limits), metrics_(metrics) {}

  const GraphIntakeLimits& limits() const { return limits_; }

  // `reclaim` gives up a reservation that is not in use and returns true, or false if there is
  // none. Called when what arrives finds no room. Set before the first call of anything else.
  void ReclaimWith(std::function<bool()> reclaim) { reclaim_ = std::move(reclaim); }

  // Of nothing yet: what is announced costs nothing, what comes does.
  std::unique_ptr<Reservation> Reserve() {
    return std::unique_ptr<Reservation>(new Reservation(*this));
  }
  absl::StatusOr<std::unique_ptr<GraphDecoder>> StartDecoder(int codec, int64_t size) const;
  // For a worker: takes time and memory. GRAPH_MALFORMED, GRAPH_TOO_LARGE, DIGEST_MISMATCH.
  absl::StatusOr<GraphPtr> Parse(const std::string& serialized, const Digest& announced) const;
  // For a worker: all of it at once.
  absl::StatusOr<GraphPtr> ReadInline(const InlineGraph& graph, const Digest& announced);

 private:
  const GraphIntakeLimits limits_;
  ServerMetrics& metrics_;
  std::function<bool()> reclaim_;
  std::atomic<int64_t> reserved_{0};
};

}  // namespace bucketd
