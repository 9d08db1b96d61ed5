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
};

class GraphIntake {
 public:
  // Announced bytes that are being held for one graph; gives them back when it dies.
  class Reservation {
   public:
    ~Reservation();
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

   private:
    friend class GraphIntake;
    Reservation(GraphIntake& intake, int64_t bytes) : intake_(intake), bytes_(bytes) {}
    GraphIntake& intake_;
    const int64_t bytes_;
  };

  // `metrics` outlives this; this outlives its reservations.
  GraphIntake(const GraphIntakeLimits& limits, ServerMetrics& metrics)
      : limits_(limits), metrics_(metrics) {}

  const GraphIntakeLimits& limits() const { return limits_; }

  // `reclaim` gives up a reservation that is not in use and returns true, or false if there is
  // none. Called when what arrives finds no room. Set before the first call of anything else.
  void ReclaimWith(std::function<bool()> reclaim) { reclaim_ = std::move(reclaim); }

  // One upload stream more; OVERLOADED if that is above max_uploads. CloseStream either way.
  absl::Status OpenStream();
  void CloseStream();
  // OVERLOADED if all graphs that arrive now would hold more than max_upload_bytes.
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(int64_t bytes);
  absl::StatusOr<std::unique_ptr<GraphDecoder>> StartDecoder(int codec, int64_t size) const;
  // For a worker: takes time and memory. GRAPH_MALFORMED, GRAPH_TOO_LARGE, DIGEST_MISMATCH.
  absl::StatusOr<GraphPtr> Parse(const std::string& serialized, const Digest& announced) const;
  // For a worker: all of it at once.
  absl::StatusOr<GraphPtr> ReadInline(const InlineGraph& graph, const Digest& announced);

 private:
  const GraphIntakeLimits limits_;
  ServerMetrics& metrics_;
  std::function<bool()> reclaim_;
  std::atomic<int64_t> streams_{0};
  std::atomic<int64_t> reserved_{0};
};

}  // namespace bucketd
