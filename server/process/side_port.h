// The side port of a daemon: what operators and their tools read. Plain HTTP, GET only.
//   /metrics  Prometheus text     /livez  200 while the process runs
//   /readyz   200 and "ok" while requests are taken, else 503 and why; a second line says what does
//             not work
// and the pages that its daemon adds. /livez and /readyz are answered at once, whatever other
// requests wait for (connections.h). No page may run scripts, load anything or be framed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "prometheus/registry.h"

namespace bucketd {

class Connections;

// Text as the inside of an HTML element or attribute.
std::string EscapedHtml(absl::string_view text);

class SidePort {
 public:
  struct Answer {
    std::string body;
    std::string type = "text/html; charset=utf-8";
    int refresh_seconds = 0;  // of a page that fetches itself anew; 0: it does not
  };
  struct Page {
    std::string path;  // "/statusz"
    std::function<Answer(const std::multimap<std::string, std::string>& query)> answer;
  };
  struct Handlers {  // called on the side port's threads
    // Why requests are not taken, "draining", "" if they are; what does not work though the daemon
    // is ready, or "". Both are short and wait for nothing.
    std::function<std::string()> not_ready, degraded;
    std::vector<Page> pages;
  };

  // Serves from then on. `address` is HOST:PORT, port 0 any free one. UNAVAILABLE names the flag,
  // --http. `registry` outlives the port.
  static absl::StatusOr<std::unique_ptr<SidePort>> Start(const std::string& address,
                                                         const prometheus::Registry& registry,
                                                         Handlers handlers);
  ~SidePort();

  const std::string& address() const { return address_; }

 private:
  class Http;
  SidePort(std::unique_ptr<Http> http, int listener, std::string address);

  const std::unique_ptr<Http> http_;
  const std::string address_;
  const std::unique_ptr<Connections> connections_;  // last: it calls http_
};

}  // namespace bucketd
