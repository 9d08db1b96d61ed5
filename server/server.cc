#include "server/server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "prometheus/registry.h"
#include "spdlog/spdlog.h"
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "passes/base/status_macros.h"
#include "passes/planner.h"
#include "server/cost_catalog.h"
#include "server/cost_samples.h"
#include "server/cost_service.h"
#include "server/http.h"
#include "server/planner_service.h"
#include "server/service_parts.h"
#include "server/version.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kServiceName[] = "bucketd.v1.Planner";
constexpr int kMessageSlackBytes = 1 << 20;  // options with thousands of parameter names
constexpr int kInlineQueue = 256;
constexpr int64_t kMemoBytes = int64_t{16} << 20;
constexpr std::chrono::seconds kLoadAgain{5};

int64_t NowUnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

CostSampleLimits LimitsOf(const CostOptions& options) {
  CostSampleLimits limits;
  limits.total = options.max_samples;
  limits.max_age_ms = int64_t{options.sample_days} * 24 * 3600 * 1000;
  return limits;
}

ServerOptions FillDefaults(ServerOptions options) {
  if (options.compute_slots == 0) {
    options.compute_slots = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
  }
  return options;
}

void LogOfGrpc(gpr_log_func_args* args) {
  const bool error = args->severity == GPR_LOG_SEVERITY_ERROR;
  spdlog::log(error ? spdlog::level::warn : spdlog::level::debug, "grpc: {}", args->message);
}

// Whether a server answers on the socket: taking its path away would leave it deaf.
bool SomebodyListens(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const bool answered =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return answered;
}

absl::Status PrepareSocket(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return absl::OkStatus();
  if (!S_ISSOCK(status.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat("--listen: ", path, " exists and is no socket"));
  }
  if (SomebodyListens(path)) {
    return absl::UnavailableError(absl::StrCat("--listen: another server is listening on ", path));
  }
  unlink(path.c_str());  // left behind by a server that died
  return absl::OkStatus();
}

}  // namespace

struct Server::Impl {
  explicit Impl(const ServerOptions& o)
      : options(FillDefaults(o)),
        metrics(registry),
        cache(options.plan_cache_bytes, metrics),
        graphs(options.graph_cache_bytes, metrics),
        intake(options.intake, metrics),
        partial_uploads(intake, timers, metrics, options.upload_resume, options.intake.max_uploads),
        compute_pool(options.compute_slots, options.compute_queue),
        intake_pool(options.upload_threads, options.intake.max_uploads + kInlineQueue),
        broker({cache, graphs, intake, compute_pool, intake_pool, timers, metrics, options}),
        parts{broker, cache, memo, graphs,  intake,  partial_uploads, intake_pool,
              timers, metrics, options, draining, costs},
        service(MakePlannerService(parts)) {
    intake.ReclaimWith([this] { return partial_uploads.DropOldest(); });
  }

  absl::Status Listen();
  absl::Status StartHttp();
  void LoadCosts();
  void SetServing(bool serving);
  void BeginDrain();
  void Stop(std::chrono::system_clock::time_point deadline);
  StatusRows Status() const;

  const ServerOptions options;
  const Clock::time_point started = Clock::now();
  std::atomic<bool> draining{false};
  std::atomic<bool> serving{false};
  bool stopped = false;
  std::string address;
  prometheus::Registry registry;
  ServerMetrics metrics;
  CostMetrics cost_metrics{registry};
  CostCatalog costs{nullptr, cost_metrics};
  CostSamples cost_samples{nullptr, cost_metrics, LimitsOf(options.costs), NowUnixMs};
  PlanCache cache;
  RequestMemo memo{kMemoBytes};
  GraphStore graphs;
  GraphIntake intake;
  Timers timers;
  PartialUploads partial_uploads;
  WorkerPool compute_pool;
  WorkerPool intake_pool;
  PlanBroker broker;
  ServiceParts parts;
  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<grpc::Service> cost_service = MakeCostService(
      {costs, cost_samples, cost_metrics, metrics, timers, options.costs, options.upload_stall,
       draining, nullptr});
  std::unique_ptr<grpc::Server> grpc_server;
  std::unique_ptr<HttpServer> http;
};

absl::Status Server::Impl::Listen() {
  const bool is_unix = IsUnixAddress(options.listen);
  const std::string path = is_unix ? options.listen.substr(5) : "";
  if (is_unix) RETURN_IF_ERROR(PrepareSocket(path));

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service.get());
  builder.RegisterService(cost_service.get());
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::max(options.intake.max_chunk_bytes, options.intake.max_inline_bytes)) +
      kMessageSlackBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, options.reuse_port ? 1 : 0);
  // Clients that long-poll keep their connection alive; the default would throw them out.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // The socket is never open wider than it will be, not even between bind and chmod.
  const mode_t mask = umask(static_cast<mode_t>(~options.socket_mode & 0777));
  grpc_server = builder.BuildAndStart();
  umask(mask);
  if (grpc_server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("--listen: cannot listen on ", options.listen,
                     is_unix ? "; does the folder exist, and may we write to it?"
                             : "; is the port taken, and is the host one of this machine's?"));
  }
  address = is_unix ? options.listen
                    : absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port);
  return absl::OkStatus();
}

absl::Status Server::Impl::StartHttp() {
  if (options.http.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(http, HttpServer::Start(options.http, registry,
                                           {.ready = [this] { return serving.load(); },
                                            .status = [this] { return Status(); }}));
  return absl::OkStatus();
}

// A store that cannot be read now may be later. Until then only the built-in profiles are known, and
// whoever asks for others is told why.
void Server::Impl::LoadCosts() {
  absl::Status loaded = costs.Load();
  if (loaded.ok()) loaded = cost_samples.Load();
  if (loaded.ok()) return;
  spdlog::warn("cost profiles: {}", std::string(loaded.message()));
  timers.Schedule(std::chrono::steady_clock::now() + kLoadAgain, [this] {
    intake_pool.TrySubmit([this] { LoadCosts(); });
  });
}

void Server::Impl::SetServing(bool value) {
  serving = value;
  metrics.ready.Set(value ? 1 : 0);
  grpc::HealthCheckServiceInterface* health = grpc_server->GetHealthCheckService();
  health->SetServingStatus(value);
  health->SetServingStatus(kServiceName, value);
}

void Server::Impl::BeginDrain() {
  if (draining.exchange(true)) return;
  SetServing(false);
  broker.BeginDrain();
}

void Server::Impl::Stop(std::chrono::system_clock::time_point deadline) {
  if (stopped) return;
  stopped = true;
  draining = true;
  if (grpc_server != nullptr) grpc_server->Shutdown(deadline);
  // Every call has been answered; nobody is left to hand in work or to wait for it. Before anything
  // that jobs and timers refer to goes.
  timers.Stop();
  intake_pool.Stop();
  compute_pool.Stop();
}

StatusRows Server::Impl::Status() const {
  const auto number = [](double value) { return absl::StrFormat("%.0f", value); };
  const std::chrono::duration<double> up = Clock::now() - started;
  return {
      {"state", draining ? "draining" : "serving"},
      {"version", kServerVersion},
      {"planner version", kPlannerVersion},
      {"address", address},
      {"pid", absl::StrCat(getpid())},
      {"up for", absl::StrFormat("%.0f s", up.count())},
      {"plans cached", number(metrics.plan_cache_entries.Value())},
      {"plan cache bytes",
       absl::StrCat(number(metrics.plan_cache_bytes.Value()), " of ", options.plan_cache_bytes)},
      {"graphs held", number(metrics.graph_cache_entries.Value())},
      {"graph cache bytes",
       absl::StrCat(number(metrics.graph_cache_bytes.Value()), " of ", options.graph_cache_bytes)},
      {"plans computed", number(metrics.computations_ok.Value())},
      {"computations that failed", number(metrics.computations_failed.Value())},
      {"computing",
       absl::StrCat(number(metrics.compute_running.Value()), " of ", options.compute_slots,
                    " slots, ", number(metrics.compute_queued.Value()), " queued")},
      {"callers waiting",
       absl::StrCat(number(metrics.waiting_callers.Value()), " of ", options.max_waiting)},
      {"uploads under way",
       absl::StrCat(number(metrics.uploads_in_flight.Value()), " of ", options.intake.max_uploads)},
  };
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  RETURN_IF_ERROR(options.Validate());
  static std::once_flag process_wide;
  std::call_once(process_wide, [] {
    // Held for good: when the last holder lets go, the library waits for a poller of its own that
    // may sleep for 10 s, and a server that has drained must not.
    grpc_init();
    gpr_set_log_function(LogOfGrpc);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  auto server = std::unique_ptr<Server>(new Server(std::make_unique<Impl>(options)));
  server->impl_->LoadCosts();
  RETURN_IF_ERROR(server->impl_->Listen());
  RETURN_IF_ERROR(server->impl_->StartHttp());
  server->impl_->SetServing(true);
  return server;
}

Server::~Server() { impl_->Stop(std::chrono::system_clock::now()); }

const std::string& Server::address() const { return impl_->address; }
const std::string& Server::http_address() const {
  static const std::string none;
  return impl_->http == nullptr ? none : impl_->http->address();
}
bool Server::ready() const { return impl_->serving; }
const prometheus::Registry& Server::registry() const { return impl_->registry; }

void Server::BeginDrain() { impl_->BeginDrain(); }

void Server::Shutdown() {
  const auto deadline = std::chrono::system_clock::now() + impl_->options.drain;
  impl_->BeginDrain();
  std::this_thread::sleep_for(std::min(impl_->options.lame_duck, impl_->options.drain));
  impl_->Stop(deadline);
}

}  // namespace bucketd
