#include "server/process/side_port.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "prometheus/text_serializer.h"
#include <sys/socket.h>

#include "httplib.h"

namespace bucketd {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kPrometheusText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr int kThreads = 4;

}  // namespace

std::string EscapedHtml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

SidePort::SidePort(const prometheus::Registry& registry, Handlers handlers)
    : registry_(registry),
      handlers_(std::move(handlers)),
      server_(std::make_unique<httplib::Server>()) {
  server_->new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server_->set_payload_max_length(0);
  server_->set_keep_alive_max_count(1);  // a connection that idles would hold a thread
  // Not the library's default, which lets a second process take the port as well.
  server_->set_socket_options([](int socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  });
  AddRoutes();
}

void SidePort::AddRoutes() {
  server_->Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(prometheus::TextSerializer().Serialize(registry_.Collect()),
                         kPrometheusText);
  });
  server_->Get("/livez", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("ok\n", kText);
  });
  server_->Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
    const std::string not_ready = handlers_.not_ready();
    response.status = not_ready.empty() ? 200 : 503;
    const std::string degraded = handlers_.degraded();
    response.set_content(absl::StrCat(not_ready.empty() ? "ok" : not_ready, "\n", degraded,
                                      degraded.empty() ? "" : "\n"),
                         kText);
  });
  for (const Page& page : handlers_.pages) {
    server_->Get(page.path, [&page](const httplib::Request& request, httplib::Response& response) {
      const Answer answer = page.answer(request.params);
      if (answer.refresh_seconds > 0) {
        response.set_header("Refresh", std::to_string(answer.refresh_seconds));
      }
      response.set_content(answer.body, answer.type);
    });
  }
}

absl::StatusOr<std::unique_ptr<SidePort>> SidePort::Start(const std::string& address,
                                                          const prometheus::Registry& registry,
                                                          Handlers handlers) {
  auto server = std::unique_ptr<SidePort>(new SidePort(registry, std::move(handlers)));
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  int port = std::stoi(address.substr(colon + 1));
  const bool bound = port == 0 ? (port = server->server_->bind_to_any_port(host)) > 0
                               : server->server_->bind_to_port(host, port);
  if (!bound) {
    return absl::UnavailableError(absl::StrCat("--http: cannot listen on ", address,
                                               "; is the port taken? (--http \"\" turns it off)"));
  }
  server->address_ = absl::StrCat(host, ":", port);
  std::promise<void> ended;
  server->ended_ = ended.get_future();
  server->thread_ = std::jthread([raw = server->server_.get(), ended = std::move(ended)]() mutable {
    raw->listen_after_bind();
    ended.set_value();
  });
  return server;
}

SidePort::~SidePort() {
  if (!thread_.joinable()) return;
  // The library forgets a stop() that comes before its loop has begun.
  do {
    server_->stop();
  } while (ended_.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready);
}

}  // namespace bucketd
