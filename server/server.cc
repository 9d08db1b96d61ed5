#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "prometheus/registry.h"
#include "spdlog/spdlog.h"
#include <grpc/grpc.h>

#include "passes/base/status_macros.h"
#include "server/admin/admin.h"
#include "server/admin/job_admin.h"
#include "server/admin/status_page.h"
#include "server/agents/epochs.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_samples.h"
#include "server/identity/trust.h"
#include "server/jobs/agreement.h"
#include "server/jobs/pins.h"
#include "server/open_store.h"
#include "server/plans/planning_switch.h"
#include "server/plans/stored_plans.h"
#include "server/process/side_port.h"
#include "server/replica.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/admission.h"
#include "server/rpc/connection_guard.h"
#include "server/rpc/cost_service.h"
#include "server/rpc/grpc_peer_calls.h"
#include "server/rpc/handoff.h"
#include "server/rpc/health_service.h"
#include "server/rpc/listener.h"
#include "server/rpc/peer_service.h"
#include "server/rpc/planner_service.h"
#include "server/rpc/ranks_call.h"
#include "server/rpc/rendezvous_service.h"
#include "server/rpc/service_parts.h"
#include "server/rpc/session_guard.h"
#include "server/store/crash_point.h"
#include "server/tenants/quotas.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;

constexpr char kServiceName[] = "bucketd.v1.Planner";
constexpr int kMessageSlackBytes = 1 << 20;  // options with thousands of parameter names
constexpr int kInlineQueue = 256;
constexpr int kRequestQueue = 2048;  // large ones, which hold more than 64 KiB each
constexpr int64_t kMemoBytes = int64_t{16} << 20;
constexpr std::chrono::seconds kLoadAgain{5};
constexpr std::chrono::seconds kCountUptime{1};
constexpr std::chrono::seconds kLookAtTrust{1};

CostSampleLimits LimitsOf(const CostOptions& options) {
  CostSampleLimits limits;
  limits.total = options.max_samples;
  limits.max_age_ms = int64_t{options.sample_days} * 24 * 3600 * 1000;
  return limits;
}

// Null: no TLS, and nobody is asked who he is.
std::unique_ptr<Trust> TrustOf(const TlsOptions& options, IdentityMetrics& metrics) {
  if (!options.on()) return nullptr;
  return std::make_unique<Trust>(
      TrustFiles{{options.certificate_file, options.key_file, options.client_ca_file},
                 options.identities_file,
                 options.accept_tokens},
      metrics);
}

Admission::IdentitiesNow IdentitiesOf(const Trust* trust) {
  if (trust == nullptr) return nullptr;
  return [trust] { return trust->identities(); };
}

ServerOptions FillDefaults(ServerOptions options) {
  if (options.compute_slots == 0) {
    options.compute_slots = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
  }
  return options;
}

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& o, PlanFunction function, OpenedStore opened)
      : options(FillDefaults(o)),
        registry_owner(std::move(opened.registry)),
        store_metrics(std::move(opened.metrics)),
        store_place(std::move(opened.place)),
        store(std::move(opened.store)),
        metrics(registry),
        cache(options.plan_cache_bytes, metrics),
        graphs(options.graph_cache_bytes, metrics, quotas),
        intake(options.intake, metrics),
        partial_uploads(timers, metrics, options.upload_resume, options.intake.max_uploads),
        upload_streams({options.intake.max_uploads, options.upload_stall, options.upload_deadline,
                        options.upload_rate_bytes},
                       metrics.displaced_uploads),
        compute_queue(options.compute_slots, options.compute_queue),
        intake_pool(options.upload_threads, options.intake.max_uploads + kInlineQueue),
        request_room(HalfOfMessages(options)),
        replica(MakeReplica()),
        broker({cache, graphs, intake, compute_queue, intake_pool, timers, metrics, options, quotas,
                std::move(function), options.store_dir.empty() ? nullptr : &stored_plans,
                replica == nullptr ? nullptr : &replica->leases()}),
        pins(*store, agreement_metrics, quotas, options.pin_ttl),
        agreement({broker, cache, graphs, intake, pins, timers, agreement_metrics, options,
                   planning, costs}),
        parts{broker,
              cache,
              memo,
              graphs,
              intake,
              partial_uploads,
              upload_streams,
              intake_pool,
              request_pool,
              request_room,
              timers,
              metrics,
              options,
              draining,
              planning,
              agreement,
              costs,
              cost_samples,
              cost_metrics,
              admission,
              quotas,
              replica == nullptr ? nullptr : &replica->routes(),
              replica == nullptr ? nullptr : &replica->peer_jobs()},
        service(MakePlannerService(parts)),
        peer_service(replica == nullptr ? nullptr
                                        : MakePeerService(parts, replica->incarnation(),
                                                          [this] { return Jobs(); })),
        admin({options, metrics, cache, planning, *store, *store_metrics, store_place,
               agreement_metrics, costs, quotas, [this] { return State(); }, Hooks()}),
        admin_service(MakeAdminService(admin, admission, metrics)) {
    intake.ReclaimWith([this] { return partial_uploads.DropOldest(); });
  }

  std::unique_ptr<Replica> MakeReplica();
  absl::Status Start(const Pings& pings);
  absl::Status Listen(const Pings& pings);
  absl::Status StartHttp();
  void OpenPins();
  void LoadCosts();
  void LoadCostsLater();
  void FollowStore();
  void FollowFiles();
  void CountUptime();
  std::string Degraded() const;
  void SetServing(bool serving);
  void BeginDrain();
  void Stop(SteadyTime deadline);
  ServerState State() const;
  std::vector<v1::JobStatus> Jobs() const;
  AdminHooks Hooks();

  const ServerOptions options;
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::atomic<bool> listening{false};  // address and http are set for good
  std::atomic<bool> draining{false};
  std::atomic<bool> serving{false};
  bool stopped = false;
  std::string address;
  const std::unique_ptr<prometheus::Registry> registry_owner;
  prometheus::Registry& registry = *registry_owner;
  const std::unique_ptr<StoreMetrics> store_metrics;
  const std::string store_place;
  const std::unique_ptr<Store> store;
  ServerMetrics metrics;
  IdentityMetrics identity_metrics{registry};
  const std::unique_ptr<Trust> trust = TrustOf(options.tls, identity_metrics);
  const Admission admission{{options.admin, IdentitiesOf(trust.get()), options.tls.identities_file,
                             options.tls.accept_tokens},
                            identity_metrics};
  const std::shared_ptr<grpc::ServerCredentials> credentials =
      CredentialsOf(trust.get(), options.tls);
  Quotas quotas{options.tenants_file, TenantLimits::OfPins(options.max_pins_per_tenant), registry};
  AgreementMetrics agreement_metrics{registry};
  CostMetrics cost_metrics{registry};
  CostCatalog costs{*store, cost_metrics};
  CostSamples cost_samples{*store, cost_metrics, LimitsOf(options.costs), WallNowMs};
  PlanningSwitch planning{*store, /*durable=*/!options.store_dir.empty(), metrics.planning_enabled};
  PlanCache cache;
  RequestMemo memo{kMemoBytes};
  GraphStore graphs;
  GraphIntake intake;
  Timers timers;
  PartialUploads partial_uploads;
  UploadStreams upload_streams;
  ComputeQueue compute_queue;
  WorkerPool intake_pool;
  ByteRoom request_room;
  WorkerPool request_pool{1, kRequestQueue};
  WorkerPool follow_pool{2, 2};  // FollowFiles, FollowStore: never behind callers or each other
  StoredPlans stored_plans{{*store, *store_metrics, cache, timers, quotas}};
  std::unique_ptr<PeerCalls> peers;        // null: this server is no replica
  const std::unique_ptr<Replica> replica;  // the same
  PlanBroker broker;
  Pins pins;
  Agreement agreement;
  ServiceParts parts;
  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<grpc::Service> peer_service;
  std::unique_ptr<grpc::Service> cost_service = MakeCostService(parts);
  Admin admin;
  std::unique_ptr<grpc::Service> admin_service;
  Epochs epochs{*store, WallNowMs};
  Rendezvous rendezvous{timers,
                        [this] { return epochs.Next(); },
                        {},
                        [this] { metrics.displaced_groups.Increment(); }};
  std::unique_ptr<grpc::Service> rendezvous_service = MakeRendezvousService(rendezvous, parts);
  HealthService health_service{kServiceName};
  std::unique_ptr<grpc::Server> grpc_server;
  std::unique_ptr<SidePort> http;
};

std::unique_ptr<Replica> Server::Impl::MakeReplica() {
  if (options.cluster_address.empty()) return nullptr;
  GrpcPeerCalls::FilesNow files;
  if (trust != nullptr) files = [this] { return trust->files(); };
  peers = std::make_unique<GrpcPeerCalls>(std::move(files), options.max_streams / 2);
  return std::make_unique<Replica>(
      Replica::Parts{options, *store, registry, timers, cache, stored_plans, graphs, *peers,
                     [this](const RanksCall& call, JobRoutes::Done done) {
                       return AskAgreement(parts, call, std::move(done));
                     },
                     [this](uint64_t call) { agreement.Cancel(call); }, [this] { BeginDrain(); }});
}

absl::Status Server::Impl::Start(const Pings& pings) {
  if (trust != nullptr) RETURN_IF_ERROR(trust->Load());
  RETURN_IF_ERROR(quotas.Load());
  if (trust != nullptr || !options.tenants_file.empty()) FollowFiles();
  stored_plans.Start();
  OpenPins();
  LoadCosts();
  epochs.Take().IgnoreError();  // again with each look
  FollowStore();
  CountUptime();
  RETURN_IF_ERROR(Listen(pings));
  if (replica != nullptr) replica->Start();
  RETURN_IF_ERROR(StartHttp());
  listening = true;
  SetServing(true);
  return absl::OkStatus();
}

absl::Status Server::Impl::Listen(const Pings& pings) {
  grpc::ServerBuilder builder;
  builder.RegisterService(service.get());
  builder.RegisterService(cost_service.get());
  builder.RegisterService(admin_service.get());
  builder.RegisterService(rendezvous_service.get());
  builder.RegisterService(&health_service);
  if (peer_service != nullptr) builder.RegisterService(peer_service.get());
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::max(options.intake.max_chunk_bytes, options.intake.max_inline_bytes)) +
      kMessageSlackBytes);
  BoundTransport(builder, options, pings);
  // Clients that long-poll keep their connection alive; the default would throw them out. Replicas
  // want to know sooner.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             replica == nullptr ? 10'000 : 4'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  const ConnectionLimits limits = LimitsOf(options);
  GuardConnections([this] { metrics.connections_closed.Increment(); }, limits);
  GuardSessions([this] { metrics.connections_closed.Increment(); }, limits);
  return StartAt(options, builder, credentials, grpc_server, address);
}

absl::Status Server::Impl::StartHttp() {
  if (options.http.empty()) return absl::OkStatus();
  SidePort::Handlers handlers;
  handlers.not_ready = [this] { return serving ? "" : "draining"; };
  handlers.degraded = [this] { return Degraded(); };
  // They show jobs and errors of all tenants. Where callers have names, whoever has none sees them
  // on this machine only.
  if (trust == nullptr || IsLoopback(options.http)) {
    handlers.pages = StatusPages([this] { return admin.GetStatus(); });
  }
  ASSIGN_OR_RETURN(http, SidePort::Start(options.http, registry, std::move(handlers)));
  return absl::OkStatus();
}

// A store that cannot be read must not keep a server from planning; each scope asks again for its
// pin.
void Server::Impl::OpenPins() {
  const absl::Status opened = pins.Open();
  if (!opened.ok()) spdlog::warn("pins are not counted: {}", opened.ToString());
}

// A store that cannot be read now may be later. Until then only the built-in profiles are known,
// and whoever asks for others is told why.
void Server::Impl::LoadCosts() {
  absl::Status loaded = costs.Load();
  if (loaded.ok()) loaded = cost_samples.Load();
  if (loaded.ok()) return;
  spdlog::warn("cost profiles: {}", std::string(loaded.message()));
  LoadCostsLater();
}

void Server::Impl::LoadCostsLater() {
  timers.Schedule(std::chrono::steady_clock::now() + kLoadAgain, [this] {
    if (!intake_pool.TrySubmit([this] { LoadCosts(); })) LoadCostsLater();
  });
}

void Server::Impl::CountUptime() {
  const auto now = std::chrono::steady_clock::now();
  metrics.uptime_seconds.Set(std::chrono::duration<double>(now - started).count());
  timers.Schedule(now + kCountUptime, [this] { CountUptime(); });
}

// Other servers of the same store may switch planning off and promote profiles.
void Server::Impl::FollowStore() {
  timers.Schedule(std::chrono::steady_clock::now() + PlanningSwitch::kLookEvery, [this] {
    follow_pool.TrySubmit([this] {
      // Errors of all three are counted and logged by the store's observer.
      planning.Look().IgnoreError();
      costs.Follow().IgnoreError();
      epochs.Take().IgnoreError();
      FollowStore();
    });
  });
}

// Files are replaced by people and by their tools, which tell nobody.
void Server::Impl::FollowFiles() {
  timers.Schedule(std::chrono::steady_clock::now() + kLookAtTrust, [this] {
    follow_pool.TrySubmit([this] {
      if (trust != nullptr) trust->Look();
      quotas.Look();
      FollowFiles();
    });
  });
}

// Not a reason to be taken out of service: plans come from memory and computation, and jobs run
// without any.
std::string Server::Impl::Degraded() const {
  const std::string trouble = store_metrics->Health().InWords();
  std::vector<std::string> lines;
  if (!trouble.empty()) lines.push_back(absl::StrCat("without its store: ", trouble));
  if (replica != nullptr) lines.push_back(replica->Trouble());
  lines.push_back(planning.Get().InWords());
  std::erase(lines, "");
  return absl::StrJoin(lines, "\n");
}

void Server::Impl::SetServing(bool value) {
  serving = value;
  metrics.ready.Set(value ? 1 : 0);
  health_service.SetServing(value);
}

void Server::Impl::BeginDrain() {
  if (draining.exchange(true)) return;
  SetServing(false);
  CrashPoint("drain: begun");
  const auto end_waits = [this] {
    agreement.BeginDrain();
    rendezvous.BeginDrain();
    broker.BeginDrain();
    CrashPoint("drain: callers told");
  };
  // Whoever is told to go elsewhere finds its job there.
  if (replica != nullptr) {
    replica->HandOver(end_waits);
  } else {
    end_waits();
  }
}

void Server::Impl::Stop(SteadyTime deadline) {
  if (stopped) return;
  stopped = true;
  draining = true;
  // Who works for a call that gRPC has cancelled does not hear of it, and gRPC waits for him.
  timers.Schedule(deadline, [this] { store->Hurry(); });
  const auto left = deadline - std::chrono::steady_clock::now();
  if (grpc_server != nullptr) grpc_server->Shutdown(std::chrono::system_clock::now() + left);
  TakeFromGrpc(&upload_streams);
  CrashPoint("drain: calls ended");
  store->Hurry();
  GuardConnections(nullptr);
  GuardSessions(nullptr);
  // Every call has been answered; nobody is left to hand in work or to wait for it. Before anything
  // that jobs and timers refer to goes.
  timers.Stop();
  request_pool.Stop();
  intake_pool.Stop();
  compute_queue.Stop();
  // What nobody makes here any more is others', however long the store takes for the rest.
  if (replica != nullptr) replica->Stop();
  agreement.Stop();
  follow_pool.Stop();
  stored_plans.Stop();
}

std::vector<v1::JobStatus> Server::Impl::Jobs() const {
  std::vector<v1::JobStatus> jobs = JobsOf(agreement);
  if (replica == nullptr) return jobs;
  for (v1::JobStatus& job : jobs) replica->Sign(job);
  return jobs;
}

AdminHooks Server::Impl::Hooks() {
  AdminHooks hooks;
  hooks.jobs = [this] { return Jobs(); };
  if (replica != nullptr) {
    hooks.jobs_elsewhere = [this](const auto& asked) { return replica->peer_jobs().Show(asked); };
    hooks.forget_elsewhere = [this](const auto& jobs) { return replica->peer_jobs().Forget(jobs); };
    hooks.cluster = [this] { return replica->View(); };
  }
  AddJobHooks(agreement, pins, hooks);
  return hooks;
}

// The first caller may come before Start has ended.
ServerState Server::Impl::State() const {
  ServerState state{draining, "", "", started};
  if (!listening) return state;
  state.address = address;
  if (http != nullptr) state.http_address = http->address();
  return state;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      PlanFunction plan_function,
                                                      const Pings& pings) {
  RETURN_IF_ERROR(options.Validate());
  static std::once_flag process_wide;
  std::call_once(process_wide, [] {
    // Held for good: when the last holder lets go, the library waits for a poller of its own that
    // may sleep for 10 s, and a server that has drained must not.
    grpc_init();
    LogLibraries();
  });
  ASSIGN_OR_RETURN(OpenedStore store, OpenStore(options));
  auto server = std::unique_ptr<Server>(
      new Server(std::make_unique<Impl>(options, std::move(plan_function), std::move(store))));
  RETURN_IF_ERROR(server->impl_->Start(pings));
  return server;
}

absl::Status Server::Check(const ServerOptions& options) {
  prometheus::Registry registry;
  IdentityMetrics metrics(registry);
  const std::unique_ptr<Trust> trust = TrustOf(options.tls, metrics);
  const TenantLimits unsaid = TenantLimits::OfPins(options.max_pins_per_tenant);
  std::vector<std::string> wrong;
  for (const absl::Status& said :
       {trust == nullptr ? absl::OkStatus() : trust->Load(),
        Quotas(options.tenants_file, unsaid, registry).Load(), CheckStoreAddress(options)}) {
    if (!said.ok()) wrong.emplace_back(said.message());
  }
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(wrong, "\n"));
}

Server::~Server() { impl_->Stop(std::chrono::steady_clock::now()); }

const std::string& Server::address() const { return impl_->address; }
const std::string& Server::http_address() const {
  static const std::string none;
  return impl_->http == nullptr ? none : impl_->http->address();
}
bool Server::ready() const { return impl_->serving; }
const prometheus::Registry& Server::registry() const { return impl_->registry; }

void Server::BeginDrain() { impl_->BeginDrain(); }

void Server::Shutdown() {
  const SteadyTime deadline = std::chrono::steady_clock::now() + impl_->options.drain;
  impl_->BeginDrain();
  std::this_thread::sleep_for(std::min(impl_->options.lame_duck, impl_->options.drain));
  impl_->Stop(deadline);
}

}  // namespace bucketd
