#include "server/rpc/reading_reactor.h"

#include "server/base/errors.h"
#include "server/plans/plan_request.h"
#include "server/rpc/handoff.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {

ReadingReactor::ReadingReactor(const ServiceParts& parts, Method method,
                               grpc::CallbackServerContext* context,
                               const grpc::ByteBuffer* request)
    : parts_(parts),
      context_(*context),
      scope_(method, parts.metrics),
      request_(request),
      held_(parts.request_room, HostOf(context->peer())) {}

void ReadingReactor::OnCancel() {
  TakeFromGrpc(this);
  cancelled_ = true;
  CancelCalls();
}

void ReadingReactor::OnDone() {
  TakeFromGrpc(this);
  LetGo();
}

// Cancellation is reported only after the constructor: gRPC does not know the reactor yet.
void ReadingReactor::Begin() {
  if (request_.size() <= kMostRequestBytes) {
    Ask();
  } else {
    AskLater();
  }
  HandToGrpc(this);
}

// Nothing of a large request is looked at before there is room for its bytes, and nothing is
// parsed before there is room for what it will take parsed: refusing costs next to nothing.
void ReadingReactor::AskLater() {
  const absl::Status room = held_.Resize(request_.size());
  if (!room.ok()) {
    End(room);
    return;
  }
  ++holders_;
  if (parts_.request_pool.TrySubmit([this] { AskOnWorker(); })) return;
  --holders_;
  End(MakeError(Reason::kOverloaded, "too many large requests are being read"));
}

void ReadingReactor::AskOnWorker() {
  const absl::Status room = cancelled_ ? CallerGone() : held_.Resize(kHeldTimes * request_.size());
  if (room.ok()) {
    Ask();
  } else {
    End(room);
  }
  if (cancelled_) CancelCalls();  // who went away meanwhile was not known to anybody yet
  HandToGrpc(this);
  LetGo();
}

void ReadingReactor::GiveBack() {
  request_.Clear();
  held_.Resize(0).IgnoreError();
}

void ReadingReactor::FinishWith(const absl::Status& status, absl::string_view about) {
  const grpc::Status ended = EndRequest(scope_, context_, status, about);
  HandToGrpc(this);
  Finish(ended);
}

// gRPC may be done with a call while the worker that asked for it is still here.
void ReadingReactor::LetGo() {
  if (--holders_ == 0) delete this;
}

}  // namespace bucketd
