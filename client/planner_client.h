// The C++ client of the planner service: what launchers link. One call, GetPlan, that always ends
// by its deadline.
//
//   client::PlannerClient planner("planner.example:9460");
//   client::PlanQuery query;
//   query.digest = digest;                                  // of the normalised graph
//   query.mesh = mesh;
//   query.options.set_mode("overlap");
//   query.graph = [&] { return serialized_graph; };         // asked for on a miss only
//   query.job = client::Job{.id = "llama-70b-17", .generation = restarts, .scope = "0/fw",
//                           .ranks = {0, 1, 2, 3, 4, 5, 6, 7}, .size = 64};
//   absl::StatusOr<client::PlanReply> reply = planner.GetPlan(query);
//
// Deadlines. Every call ends by its deadline, whatever the server, the network or other callers do;
// everything else here only decides what it ends with.
//
// Repeats. gRPC repeats calls that end with UNAVAILABLE or CANCELLED, with pauses and jitter.
// Beyond that a server that comes back within the connect timeout is asked again; one that is
// overloaded or draining says when to come back, and is obeyed; a broken upload goes on where it
// stopped.
//
// Nobody there. UNREACHABLE after the connect timeout; after two such calls in a row the
// circuit breaker (circuit_breaker.h) opens and calls end at once, with an error that says when the
// address will be tried again.
//
// Jobs. With `job`, all ranks of the job's scope get the same plan,
// byte for byte, or all the same error: RANKS_DIFFER, RANKS_MISSING, GENERATION_OVER
// (proto/REASONS.md). Without it nothing is agreed on, and ranks that ask with other graphs or
// options run other plans.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client_options.h"

#include "passes/base/digest.h"
#include "proto/planner.pb.h"

namespace bucketd::client {

inline constexpr char kClientVersion[] = "0.1.0";

// For which ranks of which job a call speaks (proto/planner.proto).
struct Job {
  std::string id;           // what the launcher calls the job; unique in its tenant
  uint64_t generation = 0;  // counts the job's restarts
  std::string scope;        // which graph of the job, the same name on every rank
  std::vector<uint32_t> ranks;
  uint32_t size = 0;   // ranks of the scope
  bool fresh = false;  // this generation gets a new plan, not the pinned one
};

struct PlanQuery {
  Digest digest{};  // GraphDigest of the normalised graph
  v1::Mesh mesh;
  v1::PlanOptions options;
  // A serialised v1::Graph of that digest (GraphToProto); called once, on the caller's thread, if
  // the service wants the graph. An error of it is returned as it is.
  std::function<absl::StatusOr<std::string>()> graph;
  std::optional<Job> job;
  std::chrono::milliseconds deadline{300'000};
};

struct PlanReply {
  std::string plan;  // a serialised v1::Plan; its SHA-256 was checked
  Digest sha256{};
  v1::PlanSource source = v1::PLAN_SOURCE_UNSPECIFIED;
};

// Of one address, which may list several servers (addresses.h). Connects at the first call.
// Thread-safe: calls of several threads run side by side. Not usable in a forked child, where every
// call is FAILED_PRECONDITION: make another one there, or fork before the first call.
class PlannerClient {
 public:
  explicit PlannerClient(const std::string& address, const ClientOptions& options = {});
  ~PlannerClient();  // no call may be running
  PlannerClient(const PlannerClient&) = delete;
  PlannerClient& operator=(const PlannerClient&) = delete;

  // A plan for query.digest, or an error with a reason (errors.h: ReasonOf): the service's own, or
  // UNREACHABLE, DEADLINE, PROTOCOL, UNPLANNED. Asks by digest; sends the graph (inline if it is
  // small, else zstd in chunks) where the service wants it, and asks again.
  absl::StatusOr<PlanReply> GetPlan(const PlanQuery& query);

  ClientCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bucketd::client
