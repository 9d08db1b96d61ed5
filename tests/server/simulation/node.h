// A server as server.cc makes it, without gRPC: real parts, on simulated threads. What its handlers
// of GetPlan, UploadGraph and Forward do stands here once more, as far as ranks of jobs need it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "prometheus/registry.h"

#include "proto/peer.pb.h"
#include "proto/planner.pb.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_samples.h"
#include "server/graphs/partial_uploads.h"
#include "server/graphs/upload_streams.h"
#include "server/identity/identity_metrics.h"
#include "server/jobs/agreement.h"
#include "server/jobs/pins.h"
#include "server/plans/planning_switch.h"
#include "server/plans/stored_plans.h"
#include "server/replica.h"
#include "server/rpc/peer_calls.h"
#include "server/rpc/ranks_call.h"
#include "server/rpc/service_parts.h"
#include "server/store/store_metrics.h"
#include "tests/server/simulation/history.h"
#include "tests/server/simulation/threads.h"

namespace bucketd::simulation {

class World;

// A call of a rank, as whoever makes it sees it.
struct RankCall {
  uint64_t id = 0;
  Subject rank;
  v1::GetPlanRequest request;
  Time deadline{};
  // Once, in the world's name: what came back, or that nothing will.
  std::function<void(const JobRoutes::Answer& answer)> done;
  bool ended = false;
};
using RankCallPtr = std::shared_ptr<RankCall>;

// The plan's SHA-256, or "unplanned".
std::string ValueOf(const PlanAnswer& answer);

class Node {
 public:
  // Blocks on the store, as the rest of a server's start does.
  Node(World& world, Process& process, const std::string& address);
  void Start();
  ~Node();

  Process& process() { return process_; }
  uint64_t incarnation() const { return replica_->incarnation(); }
  bool draining() const { return draining_; }
  size_t calls() const { return calls_.size(); }

  // ---- what gRPC's threads do
  // `answer` at most once.
  void GetPlan(const RankCallPtr& call);
  void Cancel(uint64_t call);
  using Replied = std::function<void(v1::ForwardReply reply)>;
  // Returns what CancelForward takes; 0: it has been answered.
  uint64_t Forward(const v1::ForwardRequest& request, Time deadline, Replied replied);
  void CancelForward(uint64_t id);
  uint64_t BeginUpload(const std::string& graph_key);
  // Null: it broke off.
  void EndUpload(const std::string& graph_key, uint64_t upload, GraphPtr graph);

  // ---- what operators do; blocks on the store, in a Visit, which is a call that is under way
  class Visit {
   public:
    explicit Visit(Node& node) : node_(node) { ++node_.visits_; }
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Node& node_;
  };
  PlanningSwitch& planning() { return planning_; }
  CostCatalog& costs() { return costs_; }

  void BeginDrain();
  // gRPC ends what is left of the calls.
  void CancelCalls();
  // Blocks, as Server::Stop after gRPC has shut down.
  void Stop();
  // "": nothing is left of any call.
  std::string Leaks();

 private:
  uint64_t AskHere(const RanksCall& call, JobRoutes::Done done);
  absl::StatusOr<std::string> Compute(const Graph& graph, const PlanRequest& request);
  void FollowStore();
  void LoadCosts();
  SteadyTime Local(Time time) const;

  World& world_;
  Process& process_;
  const ServerOptions options_;
  prometheus::Registry registry_;
  const std::unique_ptr<Store> store_;
  StoreMetrics store_metrics_{registry_};
  ServerMetrics metrics_{registry_};
  IdentityMetrics identity_metrics_{registry_};
  const Admission admission_{{"local", nullptr, "", false}, identity_metrics_};
  Quotas quotas_{"", TenantLimits::OfPins(options_.max_pins_per_tenant), registry_};
  AgreementMetrics agreement_metrics_{registry_};
  CostMetrics cost_metrics_{registry_};
  CostCatalog costs_{*store_, cost_metrics_};
  CostSamples cost_samples_{*store_, cost_metrics_, {}, WallNowMs};
  PlanningSwitch planning_{*store_, /*durable=*/true, metrics_.planning_enabled};
  PlanCache cache_;
  RequestMemo memo_{int64_t{1} << 20};
  GraphStore graphs_;
  GraphIntake intake_;
  Timers timers_;
  PartialUploads partial_uploads_;
  UploadStreams upload_streams_;
  ComputeQueue compute_queue_;
  WorkerPool intake_pool_;
  ByteRoom request_room_{int64_t{4} << 30};
  WorkerPool request_pool_{1, 16};
  StoredPlans stored_plans_{{*store_, store_metrics_, cache_, timers_, quotas_}};
  const std::unique_ptr<PeerCalls> peers_;
  const std::unique_ptr<Replica> replica_;
  PlanBroker broker_;
  Pins pins_;
  Agreement agreement_;
  std::atomic<bool> draining_{false};
  ServiceParts parts_;
  struct Open {
    RankCallPtr call;
    JobRoutes::CallId routed = 0;
  };
  std::map<uint64_t, Open> calls_;  // of ranks, by id
  int visits_ = 0;
};

}  // namespace bucketd::simulation
