#include "server/rpc/stream_reactor.h"

#include "passes/base/status_macros.h"
#include "server/base/errors.h"
#include "server/rpc/handoff.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {

StreamReactor::StreamReactor(const ServiceParts& parts, Method method, const Place& place,
                             grpc::CallbackServerContext* context)
    : parts_(parts), context_(*context), place_(place), scope_(method, parts.metrics) {}

StreamReactor::~StreamReactor() {
  place_.streams.Close(stream_);
  HandToGrpc(&place_.streams);  // whose end waits for that of all reactors
}

absl::Status StreamReactor::Open(const Shares::Path& share) {
  ASSIGN_OR_RETURN(stream_, place_.streams.Open(share));
  return absl::OkStatus();
}

void StreamReactor::Start(const absl::Status& begun) {
  if (begun.ok()) {
    ReadNext();
  } else {
    End(begun);
  }
}

void StreamReactor::ReadNext() {
  const absl::StatusOr<SteadyTime> until = place_.streams.BeginWait(stream_);
  if (!until.ok()) {
    End(until.status());
    return;
  }
  // Not Finish: the read may be only just starting, and nothing may start after Finish.
  stall_timer_ = parts_.timers.Schedule(*until, [this] {
    stalled_ = true;
    context_.TryCancel();
  });
  HandToGrpc(this);
  StartRead(&message_);
}

void StreamReactor::OnReadDone(bool ok) {
  TakeFromGrpc(this);
  parts_.timers.CancelAndWait(stall_timer_);
  absl::Status came =
      ok ? place_.streams.Came(stream_, static_cast<int64_t>(message_.Length())) : absl::OkStatus();
  if (came.ok() && !place_.pool.TrySubmit([this, ok] { Handle(ok); })) {
    came = MakeError(Reason::kOverloaded, place_.too_many);
  }
  if (!came.ok()) End(came);
}

void StreamReactor::Handle(bool ok) {
  if (!ok) {
    End(TakeEnd());
    return;
  }
  const absl::StatusOr<bool> goes_on = Take(RequestBytes(&message_));
  if (goes_on.value_or(false)) {
    ReadNext();
  } else {
    End(goes_on.status());
  }
}

void StreamReactor::End(const absl::Status& status) {
  message_.Clear();
  const grpc::Status ended = EndRequest(scope_, context_, status, Answer(status));
  HandToGrpc(this);
  Finish(ended);
}

void StreamReactor::OnDone() {
  TakeFromGrpc(this);
  delete this;
}

}  // namespace bucketd
