#include "server/plans/upload.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/plans/plan_request.h"

namespace bucketd {

UploadSession::UploadSession(GraphIntake& intake, GraphStore& graphs,
                             PartialUploads& partial_uploads, PlanBroker& broker,
                             ServerMetrics& metrics)
    : intake_(intake),
      graphs_(graphs),
      partial_uploads_(partial_uploads),
      broker_(broker),
      metrics_(metrics) {}

UploadSession::~UploadSession() { Close(); }

void UploadSession::Close() {
  if (decoder_ == nullptr) held_.reset();
  if (upload_ != 0) broker_.EndUpload(graph_key_, std::exchange(upload_, 0));
}

void UploadSession::KeepRest() {
  if (decoder_ == nullptr) return;
  partial_uploads_.Keep(partial_key_, {std::move(decoder_), std::move(held_)});
}

absl::StatusOr<UploadSession::Next> UploadSession::Handle(const v1::UploadGraphRequest& message) {
  switch (message.part_case()) {
    case v1::UploadGraphRequest::kHeader:
      return Begin(message.header());
    case v1::UploadGraphRequest::kChunk:
      return Chunk(message.chunk());
    case v1::UploadGraphRequest::PART_NOT_SET:
      break;
  }
  return MakeError(Reason::kUploadProtocol, "a message holds neither a header nor a chunk");
}

absl::StatusOr<UploadSession::Next> UploadSession::Begin(const v1::UploadHeader& header) {
  if (!graph_key_.empty()) {
    return MakeError(Reason::kUploadProtocol, "a second header; expected chunks after the first");
  }
  RETURN_IF_ERROR(CheckTenant(header.tenant()));
  ASSIGN_OR_RETURN(digest_, ReadDigest("graph_digest", header.graph_digest()));
  ASSIGN_OR_RETURN(content_sha256_, ReadDigest("content_sha256", header.content_sha256()));
  graph_key_ = GraphKey(header.tenant(), digest_);
  if (graphs_.Contains(graph_key_)) return Next::kPresent;
  RETURN_IF_ERROR(StartDecoding(header));
  upload_ = broker_.BeginUpload(graph_key_);
  return Next::kMore;
}

absl::Status UploadSession::StartDecoding(const v1::UploadHeader& header) {
  partial_key_ = PartialUploads::Key(graph_key_, header.codec(), content_sha256_);
  // Made in any case: it checks codec and size.
  ASSIGN_OR_RETURN(decoder_, intake_.StartDecoder(header.codec(), header.size()));
  if (header.resume_offset() == 0) {
    held_ = intake_.Reserve();
    return held_->GrowTo(decoder_->held_bytes());
  }
  decoder_ = nullptr;
  ASSIGN_OR_RETURN(PartialUpload partial,
                   partial_uploads_.Resume(partial_key_, header.resume_offset(), header.size()));
  decoder_ = std::move(partial.decoder);
  held_ = std::move(partial.held);
  return absl::OkStatus();
}

absl::StatusOr<UploadSession::Next> UploadSession::Chunk(const std::string& chunk) {
  if (graph_key_.empty()) {
    return MakeError(Reason::kUploadProtocol, "a chunk came first; expected the header");
  }
  const int64_t limit = intake_.limits().max_chunk_bytes;
  const auto size = static_cast<int64_t>(chunk.size());
  if (size > limit) {
    return MakeError(Reason::kChunkTooLarge,
                     absl::StrCat("a chunk has ", size, " bytes, the limit is ", limit),
                     {.limit = limit, .actual = size});
  }
  if (graphs_.Contains(graph_key_)) {
    decoder_.reset();
    return Next::kPresent;
  }
  metrics_.upload_received_bytes.Increment(static_cast<double>(size));
  for (size_t at = 0; at < chunk.size(); at += GraphDecoder::kPieceBytes) {
    const absl::Status appended =
        decoder_->Append(absl::string_view(chunk).substr(at, GraphDecoder::kPieceBytes));
    if (!appended.ok()) {
      decoder_.reset();  // what is wrong cannot go on
      return appended;
    }
    RETURN_IF_ERROR(held_->GrowTo(decoder_->held_bytes()));
  }
  return Next::kMore;
}

absl::Status UploadSession::Finish() {
  if (graph_key_.empty()) {
    return MakeError(Reason::kUploadProtocol, "the stream ended before a header came");
  }
  absl::StatusOr<GraphBytes> content = decoder_->Finish();
  RETURN_IF_ERROR(content.status());  // cut off: may go on
  decoder_.reset();
  if (content->sha256 != content_sha256_) {
    return MakeError(Reason::kContentMismatch,
                     absl::StrCat("the bytes that came have SHA-256 ", ToHex(content->sha256),
                                  ", announced was ", ToHex(content_sha256_)));
  }
  absl::StatusOr<GraphPtr> graph = intake_.Parse(content->bytes, digest_);
  RETURN_IF_ERROR(graph.status());
  broker_.GraphArrived(graph_key_, *std::move(graph));
  partial_uploads_.Drop(partial_key_);  // another one's, which nobody needs any more
  return absl::OkStatus();
}

}  // namespace bucketd
