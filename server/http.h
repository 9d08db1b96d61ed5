// The side port: what operators and their tools read. Plain HTTP, GET only.
//   /metrics  Prometheus text     /livez  200 while the process runs
//   /readyz   200 while requests are taken, else 503     /statusz  a page for people
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/registry.h"

namespace httplib {
class Server;
}  // namespace httplib

namespace bucketd {

using StatusRows = std::vector<std::pair<std::string, std::string>>;

class HttpServer {
 public:
  struct Handlers {  // called on the side port's threads
    std::function<bool()> ready;
    std::function<StatusRows()> status;
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
