// The composition root: builds every part, wires them by constructor, and takes them down in the
// one order that is safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "server/config/options.h"
#include "server/plans/plan_function.h"
#include "server/rpc/pings.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace bucketd {

class Server {
 public:
  // Serves when it returns. Errors name the flag that is to blame.
  // The last two are others in tests alone.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       PlanFunction plan_function = ComputePlan,
                                                       const Pings& pings = {});
  // What Start would say of the files that the options name and of the store's address, a line for
  // each mistake; without opening a port or the store.
  static absl::Status Check(const ServerOptions& options);
  ~Server();  // unless it was shut down: at once, cancelling what runs
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Where clients connect: "unix:/path" or "HOST:PORT" with the port that was chosen.
  const std::string& address() const;
  // Of the side port; "" if there is none.
  const std::string& http_address() const;
  bool ready() const;
  const prometheus::Registry& registry() const;

  // Not ready any more: health says NOT_SERVING, new calls get DRAINING, calls in flight go on.
  // Thread-safe, immediate, once is enough.
  void BeginDrain();
  // BeginDrain, the lame duck's time, then no connections and at most the rest of `drain` for calls
  // in flight; what is left then is cancelled. Returns when nothing runs any more. Once.
  void Shutdown();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bucketd
