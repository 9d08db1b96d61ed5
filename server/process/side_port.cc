#include "server/process/side_port.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "prometheus/text_serializer.h"
#include <sys/socket.h>

#include "httplib.h"
#include "server/process/connections.h"

namespace bucketd {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kPrometheusText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kBusy[] =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 5\r\n"
    "Content-Type: text/plain\r\n\r\nbusy\n";

// One request that is here, and its answer.
class Exchange final : public httplib::Stream {
 public:
  explicit Exchange(absl::string_view request) : rest_(request) {}
  std::string TakeAnswer() { return std::move(answer_); }

  bool is_readable() const override { return !rest_.empty(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    const size_t taken = rest_.copy(to, size);
    rest_.remove_prefix(taken);
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* bytes, size_t size) override {
    answer_.append(bytes, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  absl::string_view rest_;
  std::string answer_;
};

// "/readyz" of "GET /readyz?verbose HTTP/1.1".
absl::string_view PathOf(absl::string_view head) {
  const size_t begin = head.find(' ') + 1;
  return head.substr(begin, head.find_first_of(" ?\r", begin) - begin);
}

}  // namespace

std::string EscapedHtml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

// The library's server for what it does well, requests and answers. Its own way with connections, a
// thread for each while it lasts, lets a few slow clients keep everybody else out.
class SidePort::Http final : public httplib::Server {
 public:
  Http(const prometheus::Registry& registry, SidePort::Handlers handlers)
      : registry_(registry), handlers_(std::move(handlers)) {
    set_payload_max_length(0);
    set_default_headers({{"Content-Security-Policy",
                          "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
                          "form-action 'none'; frame-ancestors 'none'"},
                         {"X-Content-Type-Options", "nosniff"},
                         {"X-Frame-Options", "DENY"},
                         {"Referrer-Policy", "no-referrer"},
                         {"Cache-Control", "no-store"}});
    // Not the library's default, which lets a second process take the port as well.
    set_socket_options([](int socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    AddRoutes();
  }

  // A socket that listens, the caller's from then on; -1 if there is none. Fills port 0 in.
  int Listen(const std::string& host, int& port) {
    const bool bound = port == 0 ? (port = bind_to_any_port(host)) > 0 : bind_to_port(host, port);
    if (!bound) return -1;
    const int socket = svr_sock_.exchange(INVALID_SOCKET);
    constexpr int kBacklog = 1024;  // the library's 5 are full while a burst arrives
    return ::listen(socket, kBacklog) == 0 ? socket : -1;
  }

  std::string Answer(const std::string& head) {
    Exchange exchange(head);
    bool closed = false;
    // One page in a thousand pieces is no page that anybody needs.
    process_request(exchange, /*close_connection=*/true, closed,
                    [](httplib::Request& request) { request.ranges.clear(); });
    return exchange.TakeAnswer();
  }

 private:
  void AddRoutes() {
    Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(prometheus::TextSerializer().Serialize(registry_.Collect()),
                           kPrometheusText);
    });
    Get("/livez", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", kText);
    });
    Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      const std::string not_ready = handlers_.not_ready();
      response.status = not_ready.empty() ? 200 : 503;
      const std::string degraded = handlers_.degraded();
      response.set_content(absl::StrCat(not_ready.empty() ? "ok" : not_ready, "\n", degraded,
                                        degraded.empty() ? "" : "\n"),
                           kText);
    });
    for (const Page& page : handlers_.pages) {
      Get(page.path, [&page](const httplib::Request& request, httplib::Response& response) {
        const SidePort::Answer answer = page.answer(request.params);
        if (answer.refresh_seconds > 0) {
          response.set_header("Refresh", std::to_string(answer.refresh_seconds));
        }
        response.set_content(answer.body, answer.type);
      });
    }
    // An agent that only watches, or a server whose callers have names, has fewer than others.
    set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (response.status != 404) return;
      std::string here = "there is no such page; here are /metrics /livez /readyz";
      for (const Page& page : handlers_.pages) absl::StrAppend(&here, " ", page.path);
      response.set_content(absl::StrCat(here, "\n"), kText);
    });
  }

  const prometheus::Registry& registry_;
  const SidePort::Handlers handlers_;
};

absl::StatusOr<std::unique_ptr<SidePort>> SidePort::Start(const std::string& address,
                                                          const prometheus::Registry& registry,
                                                          Handlers handlers) {
  auto http = std::make_unique<Http>(registry, std::move(handlers));
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  int port = std::stoi(address.substr(colon + 1));
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  const int listener = http->Listen(bracketed ? host.substr(1, host.size() - 2) : host, port);
  if (listener < 0) {
    return absl::UnavailableError(absl::StrCat("--http: cannot listen on ", address,
                                               "; is the port taken? (--http \"\" turns it off)"));
  }
  return std::unique_ptr<SidePort>(
      new SidePort(std::move(http), listener, absl::StrCat(host, ":", port)));
}

SidePort::SidePort(std::unique_ptr<Http> http, int listener, std::string address)
    : http_(std::move(http)),
      address_(std::move(address)),
      connections_(std::make_unique<Connections>(
          listener, Connections::Handlers{
                        .answer = [this](const std::string& head) { return http_->Answer(head); },
                        .at_once =
                            [](absl::string_view head) {
                              const absl::string_view path = PathOf(head);
                              return path == "/livez" || path == "/readyz";
                            },
                        .busy = kBusy})) {}

SidePort::~SidePort() = default;

}  // namespace bucketd
