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

absl::Status GraphIntake::Reservation::GrowTo(int64_t bytes) {
  const int64_t more = bytes - bytes_;
  if (more <= 0) return absl::OkStatus();
  const int64_t limit = intake_.limits_.max_upload_bytes;
  int64_t reserved = intake_.reserved_.fetch_add(more) + more;
  while (reserved > limit && intake_.reclaim_ != nullptr && intake_.reclaim_()) {
    reserved = intake_.reserved_;
  }
  if (reserved > limit) {
    intake_.reserved_ -= more;
    return MakeError(Reason::kOverloaded,
                     absl::StrCat("the graphs that are arriving leave no room for ", more,
                                  " more bytes; all together may have ", limit),
                     {.limit = limit});
  }
  bytes_ = bytes;
  intake_.metrics_.upload_reserved_bytes.Increment(static_cast<double>(more));
  return absl::OkStatus();
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
                     {.limit = limits_.max_inline_bytes, .actual = encoded});
  }
  absl::StatusOr<std::unique_ptr<GraphDecoder>> decoder = StartDecoder(graph.codec, graph.size);
  RETURN_IF_ERROR(decoder.status());
  const std::unique_ptr<Reservation> held = Reserve();
  for (size_t at = 0; at < graph.data.size(); at += GraphDecoder::kPieceBytes) {
    RETURN_IF_ERROR(
        (*decoder)->Append(absl::string_view(graph.data).substr(at, GraphDecoder::kPieceBytes)));
    RETURN_IF_ERROR(held->GrowTo((*decoder)->held_bytes()));
  }
  absl::StatusOr<GraphBytes> bytes = (*decoder)->Finish();
  RETURN_IF_ERROR(bytes.status());
  metrics_.upload_received_bytes.Increment(static_cast<double>(encoded));
  return Parse(bytes->bytes, announced);
}

}  // namespace bucketd
