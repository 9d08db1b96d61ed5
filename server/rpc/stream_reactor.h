// A call of many messages: one is read, handled on a worker, and only then is the next one read.
// That is the flow control, and it makes every member but `stalled_` belong to one thread at a
// time. Which calls have a place, and how long each may be waited for: graphs/upload_streams.h.
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

#include "server/base/shares.h"
#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/graphs/upload_streams.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/service_parts.h"

namespace bucketd {

// Deletes itself when gRPC is done with it.
class StreamReactor : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  void OnReadDone(bool ok) final;
  void OnDone() final;

 protected:
  // Where messages are handled; where that is full, the answer is that too many `such` wait.
  struct Place {
    UploadStreams& streams;
    WorkerPool& pool;
    absl::string_view too_many;
  };
  // All but the context outlive this; who destroys `streams` first takes them from gRPC.
  StreamReactor(const ServiceParts& parts, Method method, const Place& place,
                grpc::CallbackServerContext* context);
  ~StreamReactor() override;

  // OVERLOADED if all places are taken.
  absl::Status Open(const Shares::Path& share);
  bool is_open() const { return stream_ != 0; }
  // Last thing in a constructor: reads, or ends with that error.
  void Start(const absl::Status& begun);

  // The next message. False: nothing more is wanted, and all is well.
  virtual absl::StatusOr<bool> Take(RequestBytes message) = 0;
  // What comes of it when the caller has sent everything, or has gone away.
  virtual absl::Status TakeEnd() = 0;
  // Writes the answer, and returns what the log says of it. Once.
  virtual std::string Answer(const absl::Status& status) = 0;

  const ServiceParts& parts_;
  grpc::CallbackServerContext& context_;
  // It was waited for too long, and cancelled.
  std::atomic<bool> stalled_{false};

 private:
  void ReadNext();
  void Handle(bool ok);
  void End(const absl::Status& status);

  const Place place_;
  RequestScope scope_;
  grpc::ByteBuffer message_;
  UploadStreams::Id stream_ = 0;
  Timers::Id stall_timer_ = 0;
};

}  // namespace bucketd
