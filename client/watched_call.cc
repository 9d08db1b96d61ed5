#include "client/watched_call.h"

#include <utility>

namespace bucketd::client {

using std::chrono::milliseconds;

CallWatch::CallWatch(grpc::ClientContext& call, std::shared_ptr<ServerChannel> at,
                     ServerList earlier, const WatchOptions& options)
    : call_(call),
      at_(std::move(at)),
      earlier_(std::move(earlier)),
      options_(options),
      thread_([this] { Run(); }) {}

CallWatch::~CallWatch() { Elsewhere(); }

std::shared_ptr<ServerChannel> CallWatch::Elsewhere() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (ping_ != nullptr) ping_->TryCancel();
  }
  ended_cv_.notify_all();
  if (thread_.joinable()) thread_.join();
  return elsewhere_;
}

bool CallWatch::Ended(milliseconds wait) {
  std::unique_lock lock(mutex_);
  return ended_cv_.wait_for(lock, wait, [this] { return ended_; });
}

grpc::Status CallWatch::Ping(ServerChannel& server, milliseconds patience) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return grpc::Status::CANCELLED;
    ping_ = &context;
  }
  const grpc::Status status = server.Ping(context);
  const std::lock_guard lock(mutex_);
  ping_ = nullptr;
  return status;
}

void CallWatch::Run() {
  int silent = 0;
  for (milliseconds look = options_.first_look; !Ended(look);) {
    for (const std::shared_ptr<ServerChannel>& server : earlier_) {
      if (!IsStanding(Ping(*server, options_.first_look))) continue;
      server->Answered();
      elsewhere_ = server;
      return call_.TryCancel();
    }
    if (look == options_.later_looks) {
      // One that drains answers, and ends the calls that it has.
      silent = IsAnswer(Ping(*at_, options_.later_looks)) ? 0 : silent + 1;
      if (silent == options_.silent) return call_.TryCancel();
    }
    look = look > options_.first_look ? options_.later_looks : 2 * look;
  }
}

}  // namespace bucketd::client
