// A unary call whose request may be large: then it is read on a worker, and only if there is room.
#pragma once

#include <atomic>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "server/base/byte_room.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/service_parts.h"

namespace bucketd {

// Deletes itself when gRPC is done with it and nobody reads.
class ReadingReactor : public grpc::ServerUnaryReactor {
 public:
  void OnCancel() final;
  void OnDone() final;

 protected:
  // Takes the request from gRPC. `parts` outlives this.
  ReadingReactor(const ServiceParts& parts, Method method, grpc::CallbackServerContext* context,
                 const grpc::ByteBuffer* request);

  // Last thing in the constructor of a call that has not been answered: Ask() here, if the request
  // is small, else on a worker; or End() if there is no room for it.
  void Begin();

  // Reads the request, and answers it now or later. What it makes of it is held in `held_` instead.
  virtual void Ask() = 0;
  // Answers the call. Once.
  virtual void End(const absl::Status& status) = 0;
  // Of what Ask() has asked; no-op before.
  virtual void CancelCalls() = 0;

  // First thing in whatever answers: what the request took is free before its caller is told, since
  // who reads slowly, or not at all, decides when gRPC is done with this.
  void GiveBack();
  // Hands this back to gRPC.
  void FinishWith(const absl::Status& status, absl::string_view about);

  const ServiceParts& parts_;
  grpc::CallbackServerContext& context_;
  RequestScope scope_;
  RequestBytes request_;
  ByteRoom::Held held_;

 private:
  void AskLater();
  void AskOnWorker();
  void LetGo();

  std::atomic<bool> cancelled_{false};
  std::atomic<int> holders_{1};  // gRPC, and the worker
};

}  // namespace bucketd
