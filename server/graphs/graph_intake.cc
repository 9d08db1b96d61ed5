#include "server/graphs/graph_intake.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "server/base/errors.h"
#include "server/graphs/graph_scan.h"

namespace bucketd {

GraphIntake::Reservation::~Reservation() {
  intake_.reserved_ -= bytes_;
  intake_.metrics_.upload_reserved_bytes.Decrement(static_cast<double>(bytes_));
}

absl::Status GraphIntake::OpenStream() {
  const int64_t open = ++streams_;
  metrics_.uploads_in_flight.Increment();
  if (open <= limits_.max_uploads) return absl::OkStatus();
  return MakeError(Reason::kOverloaded, absl::StrCat(limits_.max_uploads, " uploads are under way"),
                   {.limit = limits_.max_uploads, .actual = open, .node = {}});
}

void GraphIntake::CloseStream() {
  --streams_;
  metrics_.uploads_in_flight.Decrement();
}

absl::StatusOr<std::unique_ptr<GraphIntake::Reservation>> GraphIntake::Reserve(int64_t bytes) {
  int64_t reserved = reserved_.fetch_add(bytes) + bytes;
  metrics_.upload_reserved_bytes.Increment(static_cast<double>(bytes));
  // Made first, so that a refusal gives back what was just taken.
  auto reservation = std::unique_ptr<Reservation>(new Reservation(*this, bytes));
  while (reserved > limits_.max_upload_bytes && reclaim_ != nullptr && reclaim_()) {
    reserved = reserved_;
  }
  if (reserved > limits_.max_upload_bytes) {
    return MakeError(Reason::kOverloaded,
                     absl::StrCat("graphs of ", reserved - bytes,
                                  " bytes are arriving already; all together may have ",
                                  limits_.max_upload_bytes),
                     {.limit = limits_.max_upload_bytes, .actual = reserved, .node = {}});
  }
  return reservation;
}

absl::StatusOr<std::unique_ptr<GraphDecoder>> GraphIntake::StartDecoder(int codec,
                                                                        int64_t size) const {
  return GraphDecoder::Start(codec, size, limits_.max_graph_bytes, limits_.max_compression_ratio);
}

absl::StatusOr<GraphPtr> GraphIntake::Parse(const std::string& serialized,
                                            const Digest& announced) const try {
  RETURN_IF_ERROR(ScanGraph(serialized, limits_.max_graph_nodes));
  GraphLimits limits;
  limits.max_nodes = limits_.max_graph_nodes;
  absl::StatusOr<Graph> graph = GraphFromBytes(serialized, limits);
  if (!graph.ok()) return WithReason(Reason::kGraphMalformed, graph.status());
  const Digest actual = GraphDigest(*graph);
  if (actual != announced) {
    return MakeError(Reason::kDigestMismatch, absl::StrCat("this graph's digest is ", ToHex(actual),
                                                           ", announced was ", ToHex(announced)));
  }
  return std::make_shared<const Graph>(*std::move(graph));
} catch (const std::exception& e) {  // the standard library's: out of memory
  return MakeError(Reason::kOverloaded, absl::StrCat("reading the graph ended with: ", e.what()));
}

absl::StatusOr<GraphPtr> GraphIntake::ReadInline(const InlineGraph& graph,
                                                 const Digest& announced) {
  const auto encoded = static_cast<int64_t>(graph.data.size());
  if (encoded > limits_.max_inline_bytes) {
    return MakeError(Reason::kGraphTooLarge,
                     absl::StrCat("an inline graph has ", encoded, " bytes, the limit is ",
                                  limits_.max_inline_bytes, "; upload it"),
                     {.limit = limits_.max_inline_bytes, .actual = encoded, .node = {}});
  }
  absl::StatusOr<std::unique_ptr<GraphDecoder>> decoder = StartDecoder(graph.codec, graph.size);
  RETURN_IF_ERROR(decoder.status());
  const absl::StatusOr<std::unique_ptr<Reservation>> held = Reserve(graph.size);
  RETURN_IF_ERROR(held.status());
  RETURN_IF_ERROR((*decoder)->Append(graph.data));
  absl::StatusOr<GraphBytes> bytes = (*decoder)->Finish();
  RETURN_IF_ERROR(bytes.status());
  metrics_.upload_received_bytes.Increment(static_cast<double>(encoded));
  return Parse(bytes->bytes, announced);
}

}  // namespace bucketd
