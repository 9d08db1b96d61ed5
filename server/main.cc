// bucketd: flags to options, one server, one orderly end.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "server/log.h"
#include "server/options.h"
#include "server/server.h"
#include "server/signals.h"
#include "server/version.h"

namespace bucketd {
namespace {

constexpr int kRefused = 1;
constexpr int kUsage = 2;

constexpr char kAbout[] =
    R"(bucketd plans the collectives of sharded training steps: which share a bucket, and when each
one runs. Clients send a graph once; every later job with that graph gets the same plan from memory.

  bucketd --listen unix:/run/bucketd/socket     for processes of one machine
  bucketd --listen 127.0.0.1:0                  any free port; the address is printed
  bucketd --listen 0.0.0.0:9460 --insecure      for a cluster whose network is trusted (no TLS yet)

It runs until SIGTERM or SIGINT, lets calls in flight end, and exits 0; a second signal ends it at
once. Exit codes: 0 done, 1 could not start, 2 usage.)";

struct Flags {
  ServerOptions options;
  std::string socket_mode = "600";
  double drain_seconds = 15;
  int64_t lame_duck_ms = 500;
  int64_t upload_lease_ms = 10'000;
  int64_t upload_stall_ms = 10'000;
  int64_t upload_resume_ms = 60'000;
  std::string ready_file;
  int64_t parent = 0;
  std::string log_level = "info";
  bool log_json = false;
};

void AddServingFlags(CLI::App& app, Flags& flags) {
  const char* group = "Serving";
  ServerOptions& o = flags.options;
  app.add_option("--listen", o.listen, "Where clients connect: unix:/path or HOST:PORT")
      ->capture_default_str()
      ->group(group);
  app.add_option("--http", o.http,
                 "Side port for /metrics, /livez, /readyz, /statusz: HOST:PORT, \"\" for none")
      ->capture_default_str()
      ->group(group);
  app.add_option("--socket-mode", flags.socket_mode, "Permissions of a unix socket, octal")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--insecure", o.insecure,
               "Allow listeners that other machines can reach. There is no TLS yet: whoever "
               "reaches the port can ask for plans and fill the caches")
      ->group(group);
  app.add_flag("--reuse-port", o.reuse_port,
               "Let a successor listen on the same TCP port before this server has ended")
      ->group(group);
  app.add_option("--ready-file", flags.ready_file,
                 "Write {\"address\", \"http\", \"pid\"} as JSON to this file once serving")
      ->group(group);
  app.add_flag("--exit-with-parent", flags.parent,
               "Stop when the process that started this one ends. --exit-with-parent=PID also "
               "refuses to start under any other parent")
      ->group(group);
  app.add_option("--drain-seconds", flags.drain_seconds,
                 "After a signal, calls in flight have this long")
      ->capture_default_str()
      ->group(group);
  app.add_option("--lame-duck-ms", flags.lame_duck_ms,
                 "Of which this long for load balancers to see that the server is not ready")
      ->capture_default_str()
      ->group(group);
}

void AddLimitFlags(CLI::App& app, Flags& flags) {
  const char* group = "Limits";
  ServerOptions& o = flags.options;
  const auto add = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->capture_default_str()->group(group);
  };
  add("--max-graph-bytes", o.intake.max_graph_bytes, "Of one serialised graph, uncompressed");
  add("--max-graph-nodes", o.intake.max_graph_nodes, "Of one graph");
  add("--max-inline-bytes", o.intake.max_inline_bytes, "Of a graph inside GetPlan, as sent");
  add("--max-chunk-bytes", o.intake.max_chunk_bytes, "Of one message of an upload");
  add("--max-compression-ratio", o.intake.max_compression_ratio,
      "Uncompressed to compressed bytes");
  add("--max-uploads", o.intake.max_uploads, "Upload streams at a time");
  add("--max-upload-bytes", o.intake.max_upload_bytes, "Of all graphs that are arriving");
  add("--upload-threads", o.upload_threads, "Threads that decode and verify graphs");
  add("--upload-lease-ms", flags.upload_lease_ms,
      "How long a caller that was asked for a graph has to begin; then another is asked");
  add("--upload-stall-ms", flags.upload_stall_ms, "An upload silent for this long is ended");
  add("--upload-resume-ms", flags.upload_resume_ms,
      "What broke off may go on where it stopped for this long; 0: not at all");
  add("--compute-slots", o.compute_slots, "Plans computed at a time; 0: one a core, two at least");
  add("--compute-queue", o.compute_queue, "Plans that wait for a slot; beyond: OVERLOADED");
  add("--max-waiting", o.max_waiting,
      "Callers that wait for a graph or plan, and graphs asked for; beyond: OVERLOADED");
  add("--plan-cache-bytes", o.plan_cache_bytes, "Computed plans kept in memory");
  add("--graph-cache-bytes", o.graph_cache_bytes, "Uploaded graphs kept in memory");
}

void AddLogFlags(CLI::App& app, Flags& flags) {
  app.add_option("--log-level", flags.log_level,
                 "trace, debug (a line a request), info, warn, error or off")
      ->capture_default_str()
      ->group("Logging");
  app.add_flag("--log-json", flags.log_json, "One JSON object a line")->group("Logging");
  app.set_version_flag("--version", std::string("bucketd ") + kServerVersion);
}

absl::Status Complete(Flags& flags) {
  ServerOptions& o = flags.options;
  char* end = nullptr;
  o.socket_mode = static_cast<int32_t>(std::strtol(flags.socket_mode.c_str(), &end, 8));
  if (flags.socket_mode.empty() || *end != '\0') o.socket_mode = -1;
  if (!(flags.drain_seconds >= 0 && flags.drain_seconds <= 86'400)) {
    return absl::InvalidArgumentError("--drain-seconds: expected 0 to 86400");
  }
  o.drain = std::chrono::milliseconds(static_cast<int64_t>(flags.drain_seconds * 1e3));
  o.lame_duck = std::chrono::milliseconds(flags.lame_duck_ms);
  o.upload_lease = std::chrono::milliseconds(flags.upload_lease_ms);
  o.upload_stall = std::chrono::milliseconds(flags.upload_stall_ms);
  o.upload_resume = std::chrono::milliseconds(flags.upload_resume_ms);
  return o.Validate();
}

// Readers see the whole file or none.
absl::Status WriteReadyFile(const std::string& path, const Server& server) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  const std::string json =
      absl::StrCat("{\"address\": \"", absl::Utf8SafeCEscape(server.address()), "\", \"http\": \"",
                   server.http_address(), "\", \"pid\": ", getpid(), "}\n");
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  bool written = file != nullptr && std::fputs(json.c_str(), file) >= 0;
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const std::string why = std::strerror(errno);
  std::remove(temporary.c_str());
  return absl::UnavailableError(absl::StrCat("--ready-file: cannot write ", path, ": ", why));
}

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "bucketd: %s\n", std::string(status.message()).c_str());
  return code;
}

int Serve(Flags& flags) {
  StopSignals::Options stop_options;
  // A bare flag counts as 1.
  stop_options.parent = flags.parent == 1 ? getppid() : static_cast<pid_t>(flags.parent);
  const auto stop = StopSignals::Create(stop_options);
  if (!stop.ok()) return Fail(stop.status(), kRefused);
  const auto server = Server::Start(flags.options);
  if (!server.ok()) return Fail(server.status(), kRefused);
  if (!flags.ready_file.empty()) {
    const absl::Status written = WriteReadyFile(flags.ready_file, **server);
    if (!written.ok()) return Fail(written, kRefused);
  }
  const std::string& http = (*server)->http_address();
  std::printf("bucketd %s serves on %s%s%s\n", kServerVersion, (*server)->address().c_str(),
              http.empty() ? "" : ", side port http://", http.c_str());
  std::fflush(stdout);
  if (flags.options.insecure) spdlog::warn("--insecure: listeners have no TLS");

  const StopSignals::Cause cause = (*stop)->Wait();
  StopSignals::RestoreDefaults();
  spdlog::info("stopping: {}; calls in flight have {} s",
               cause == StopSignals::Cause::kSignal ? "signal" : "the parent process ended",
               flags.drain_seconds);
  if (!flags.ready_file.empty()) std::remove(flags.ready_file.c_str());
  (*server)->Shutdown();
  spdlog::info("stopped");
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(kAbout, "bucketd");
  AddServingFlags(app, flags);
  AddLimitFlags(app, flags);
  AddLogFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
  absl::Status status = Complete(flags);
  if (status.ok()) status = ConfigureLog(flags.log_level, flags.log_json);
  if (!status.ok()) return Fail(status, kUsage);
  return Serve(flags);
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) { return bucketd::Main(argc, argv); }
