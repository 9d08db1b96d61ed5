// One upload: header, chunks in order, end. Everything but the transport. Not thread-safe; Chunk
// and Finish take time and belong on a worker.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "passes/base/digest.h"
#include "server/base/metrics.h"
#include "server/graphs/graph_intake.h"
#include "server/graphs/graph_store.h"
#include "server/graphs/partial_uploads.h"
#include "server/plans/plan_broker.h"

namespace bucketd::v1 {
class UploadGraphRequest;
class UploadHeader;
}  // namespace bucketd::v1

namespace bucketd {

class UploadSession {
 public:
  enum class Next {
    kMore,     // read on
    kPresent,  // the graph is here, by whatever way: the upload is done
  };

  // All outlive the session.
  UploadSession(GraphIntake& intake, GraphStore& graphs, PartialUploads& partial_uploads,
                PlanBroker& broker, ServerMetrics& metrics);
  ~UploadSession();  // Close()s
  UploadSession(const UploadSession&) = delete;
  UploadSession& operator=(const UploadSession&) = delete;

  // The next message of the stream. On an error the session is over.
  absl::StatusOr<Next> Handle(const v1::UploadGraphRequest& message);
  // The caller has sent everything.
  absl::Status Finish();

  // Keeps what has come, if that can go on: for uploads that broke off without being wrong.
  void KeepRest();
  // Nothing comes any more. Without a graph, another caller is asked for it.
  void Close();

  const Digest& digest() const { return digest_; }

 private:
  absl::StatusOr<Next> Begin(const v1::UploadHeader& header);
  absl::Status StartDecoding(const v1::UploadHeader& header);
  absl::StatusOr<Next> Chunk(const std::string& chunk);

  GraphIntake& intake_;
  GraphStore& graphs_;
  PartialUploads& partial_uploads_;
  PlanBroker& broker_;
  ServerMetrics& metrics_;

  std::string graph_key_;  // "": no header yet
  std::string partial_key_;
  Digest digest_{};
  Digest content_sha256_{};
  PlanBroker::UploadId upload_ = 0;
  std::unique_ptr<GraphIntake::Reservation> held_;
  std::unique_ptr<GraphDecoder> decoder_;  // null: before the header, and after the last use
};

}  // namespace bucketd
