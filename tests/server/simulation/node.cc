#include "tests/server/simulation/node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/cluster/leases.h"
#include "server/rpc/forwarded.h"
#include "tests/server/simulation/world.h"

namespace bucketd::simulation {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kLoadAgain{5};

ServerOptions OptionsOf(const std::string& address) {
  ServerOptions options;
  options.cluster_address = address;
  options.store_dir = "simulated";
  options.compute_slots = 2;
  return options;
}

SteadyTime Now() { return std::chrono::steady_clock::now(); }

}  // namespace

std::string ValueOf(const PlanAnswer& answer) {
  return answer.reply == nullptr ? "unplanned" : ToHex(answer.reply->plan_sha256);
}

Node::Node(World& world, Process& process, const std::string& address)
    : world_(world),
      process_(process),
      options_(OptionsOf(address)),
      store_(world.engine.Connect(process)),
      cache_(options_.plan_cache_bytes, metrics_),
      graphs_(options_.graph_cache_bytes, metrics_, quotas_),
      intake_(options_.intake, metrics_),
      partial_uploads_(timers_, metrics_, options_.upload_resume, options_.intake.max_uploads),
      upload_streams_({}, metrics_.displaced_uploads),
      compute_queue_(options_.compute_slots, options_.compute_queue),
      intake_pool_(options_.upload_threads, options_.intake.max_uploads),
      peers_(world.network.Connect(process)),
      replica_(std::make_unique<Replica>(Replica::Parts{
          options_, *store_, registry_, timers_, cache_, stored_plans_, graphs_, *peers_,
          [this](const RanksCall& call, JobRoutes::Done done) {
            return AskHere(call, std::move(done));
          },
          [this](uint64_t call) { agreement_.Cancel(call); },
          [] {}})),  // no two processes that live have one address
      broker_({cache_, graphs_, intake_, compute_queue_, intake_pool_, timers_, metrics_, options_,
               quotas_,
               [this](const Graph& graph, const PlanRequest& request) {
                 return Compute(graph, request);
               },
               &stored_plans_, &replica_->leases()}),
      pins_(*store_, agreement_metrics_, quotas_, options_.pin_ttl),
      agreement_({broker_, cache_, graphs_, intake_, pins_, timers_, agreement_metrics_, options_,
                  planning_, costs_}),
      parts_{broker_,         cache_,
             memo_,           graphs_,
             intake_,         partial_uploads_,
             upload_streams_, intake_pool_,
             request_pool_,   request_room_,
             timers_,         metrics_,
             options_,        draining_,
             planning_,       agreement_,
             costs_,          cost_samples_,
             cost_metrics_,   admission_,
             quotas_,         &replica_->routes()} {}

Node::~Node() = default;

void Node::Start() {
  stored_plans_.Start();
  pins_.Open().IgnoreError();
  LoadCosts();
  FollowStore();
  replica_->Start();
}

void Node::LoadCosts() {
  if (costs_.Load().ok()) return;
  timers_.Schedule(Now() + kLoadAgain, [this] { intake_pool_.TrySubmit([this] { LoadCosts(); }); });
}

void Node::FollowStore() {
  timers_.Schedule(Now() + PlanningSwitch::kLookEvery, [this] {
    const auto look = [this] {
      planning_.Look().IgnoreError();
      costs_.Follow().IgnoreError();
      FollowStore();
    };
    if (!stored_plans_.TrySubmit(look)) FollowStore();
  });
}

SteadyTime Node::Local(Time time) const {
  const SteadyTime now = Now();
  return std::min<SteadyTime>(now + (time - world_.threads.now()), now + options_.max_wait);
}

// ---- calls

void Node::GetPlan(const RankCallPtr& call) {
  const auto answer = [this, id = call->id](const JobRoutes::Answer& said) {
    const auto open = calls_.find(id);
    if (process_.dead || open == calls_.end()) return;
    const RankCallPtr ended = open->second.call;
    calls_.erase(open);
    world_.Answer(process_, ended, said);
  };
  calls_[call->id].call = call;
  if (draining_) {
    answer(MakeError(Reason::kDraining, "the server is shutting down"));
    return;
  }
  absl::StatusOr<RanksCall> read = ReadRanksCall(call->request);
  if (!read.ok()) {
    answer(read.status());
    return;
  }
  read->asker.peer = absl::StrCat("host ", call->rank.job, "-", call->rank.rank / 8);
  read->asker.call.request = absl::StrCat(call->id);
  read->deadline = Local(call->deadline);
  const JobRoutes::CallId routed = replica_->routes().GetPlan(*std::move(read), answer);
  const auto still = calls_.find(call->id);
  if (still != calls_.end()) still->second.routed = routed;
}

void Node::Cancel(uint64_t call) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const JobRoutes::CallId routed = found->second.routed;
  calls_.erase(found);
  if (routed != 0) replica_->routes().Cancel(routed);
}

uint64_t Node::Forward(const v1::ForwardRequest& request, Time deadline, Replied replied) {
  v1::ForwardReply moved;
  moved.mutable_moved();
  if (draining_ || request.incarnation() != incarnation()) {
    replied(moved);
    return 0;
  }
  absl::StatusOr<RanksCall> call = ReadForwarded(request);
  if (!call.ok()) {
    replied(ForwardReplyOf(call.status(), std::nullopt));
    return 0;
  }
  call->deadline = Local(deadline);
  return replica_->routes().Serve(
      *std::move(call), [this, replied = std::move(replied), with_plan = request.with_plan()](
                            const auto& answer, const auto& holder) {
        if (process_.dead) return;
        v1::ForwardReply reply = ForwardReplyOf(answer, holder);
        const PlanReplyPtr plan = PlanBeside(answer, with_plan);
        if (plan != nullptr) reply.mutable_plan()->set_plan(std::string(PlanBytesOf(*plan)));
        replied(reply);
      });
}

void Node::CancelForward(uint64_t id) {
  if (id != 0) replica_->routes().Cancel(id);
}

uint64_t Node::BeginUpload(const std::string& graph_key) { return broker_.BeginUpload(graph_key); }

void Node::EndUpload(const std::string& graph_key, uint64_t upload, GraphPtr graph) {
  if (graph != nullptr) broker_.GraphArrived(graph_key, std::move(graph));
  broker_.EndUpload(graph_key, upload);
}

// To the agreement here, and seen from outside: who waits here, and by what right.
uint64_t Node::AskHere(const RanksCall& call, JobRoutes::Done done) {
  uint64_t id = 0;
  if (!absl::SimpleAtoi(call.asker.call.request, &id)) return 0;
  const Subject rank = world_.RankOf(id);
  const LeaseName lease = JobLease(call.tenant, call.job);
  if (!process_.dead && replica_->leases().Holds(lease)) {
    world_.history.Holds(rank, absl::StrCat("lease/job/", lease.key), process_.name, incarnation());
  }
  world_.history.Present(id, rank, process_);
  return AskAgreement(parts_, call, [this, id, rank, done = std::move(done)](const auto& answer) {
    world_.history.Absent(id, process_);
    if (!process_.dead && answer.ok() && answer->outcome != PlanOutcome::kGraphRequired) {
      world_.history.Decided(rank, process_, ValueOf(*answer));
    }
    done(answer);
  });
}

absl::StatusOr<std::string> Node::Compute(const Graph& graph, const PlanRequest& request) {
  if (process_.dead) return absl::UnavailableError("the process has ended");
  const LeaseName lease = PlanLease(request.key);
  const bool leased = replica_->leases().Holds(lease);
  if (leased) {
    const std::string record = absl::StrCat("lease/plan/", lease.key);
    world_.history.Holds({}, record, process_.name, incarnation());
  }
  world_.history.Computes(request.key, process_, leased);
  // Whether it is cancelled is a matter of the thread, and others run while this one sleeps.
  absl::StatusOr<std::string> plan = ComputePlan(graph, request);
  world_.threads.Sleep(world_.ComputeTime());
  world_.history.Computed(request.key, process_);
  return plan;
}

Node::Visit::~Visit() {
  if (--node_.visits_ == 0) node_.world_.threads.Wake(&node_.visits_, Threads::Whom::kAll);
}

// ---- the end

void Node::BeginDrain() {
  if (draining_.exchange(true)) return;
  replica_->HandOver([this] {
    agreement_.BeginDrain();
    broker_.BeginDrain();
  });
}

void Node::CancelCalls() {
  while (!calls_.empty()) {
    const auto [id, open] = *calls_.begin();
    Cancel(id);
    world_.Answer(process_, open.call, absl::CancelledError("the server has ended"));
  }
}

void Node::Stop() {
  draining_ = true;
  while (visits_ > 0) world_.threads.WaitOn(&visits_);
  timers_.Stop();
  request_pool_.Stop();
  intake_pool_.Stop();
  compute_queue_.Stop();
  replica_->Stop();
  agreement_.Stop();
  stored_plans_.Stop();
}

std::string Node::Leaks() {
  std::string left;
  const auto see = [&](const char* what, double value) {
    if (value != 0) absl::StrAppend(&left, left.empty() ? "" : ", ", value, " ", what);
  };
  see("calls", static_cast<double>(calls_.size()));
  see("waiting ranks", agreement_metrics_.waiting_ranks.Value());
  see("waiting callers", metrics_.waiting_callers.Value());
  see("computations queued", metrics_.compute_queued.Value());
  see("computations running", metrics_.compute_running.Value());
  see("leases of plans", static_cast<double>(replica_->leases().held(LeaseOf::kPlan)));
  return left;
}

}  // namespace bucketd::simulation
