// The side port: what operators and their tools read. Plain HTTP, GET only.
//   /metrics  Prometheus text     /livez  200 while the process runs
//   /readyz   200 while requests are taken, else 503; a second line says what does not work
//   /statusz  a page for people, also at /; ?refresh=5: which fetches itself anew every 5 s
//   /statusz?format=json  the same for scripts: bucketd.v1.GetStatusResponse (proto/admin.proto)
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "prometheus/registry.h"

#include "proto/admin.pb.h"

namespace httplib {
class Server;
}  // namespace httplib

namespace bucketd {

class HttpServer {
 public:
  struct Handlers {  // called on the side port's threads
    std::function<bool()> ready;
    std::function<std::string()> degraded;  // what does not work though the server is ready; ""
    std::function<v1::GetStatusResponse()> status;
  };

  // Serves from then on. `address` is HOST:PORT, port 0 any free one. UNAVAILABLE names the flag.
  // `registry` outlives the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           const prometheus::Registry& registry,
                                                           Handlers handlers);
  ~HttpServer();

  const std::string& address() const { return address_; }

 private:
  HttpServer(const prometheus::Registry& registry, Handlers handlers);
  void AddRoutes();

  const prometheus::Registry& registry_;
  const Handlers handlers_;
  std::unique_ptr<httplib::Server> server_;
  std::string address_;
  std::future<void> ended_;
  std::jthread thread_;
};

}  // namespace bucketd
