// What the machine wants done: data. The shell (server/jobs/agreement.h) does it once it has let go
// of its lock, and brings what comes of it back as an event (events.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

#include "server/base/clock.h"
#include "server/base/log.h"
#include "server/base/trace_context.h"
#include "server/graphs/graph_intake.h"
#include "server/graphs/graph_store.h"
#include "server/jobs/machine/job_call.h"
#include "server/jobs/machine/outcomes.h"
#include "server/jobs/machine/pin.h"
#include "server/plans/plan_answer.h"
#include "server/plans/plan_request.h"

namespace bucketd {

using CallId = uint64_t;   // never 0; never used again
using ScopeId = uint64_t;  // the same

// A fetch of a plan that is under way for one signature of a scope. The number is unique: an answer
// to a fetch that was given up meanwhile is known by it.
struct FetchId {
  ScopeId scope = 0;
  size_t signature = 0;
  uint64_t number = 0;
};
struct TimerId {
  ScopeId scope = 0;     // 0: the job table's
  size_t signature = 0;  // where it is a fetch's
  uint64_t number = 0;   // 0: not armed
};

// -- of the broker
struct AskBroker {
  FetchId fetch;
  std::shared_ptr<PlanRequest> request;  // PlanCame
};
struct GiveUpFetch {  // no-op if the broker has answered
  uint64_t number = 0;
};
struct HurryFetch {  // the broker is to answer what it has been waiting for
  uint64_t number = 0;
};
struct OfferGraph {
  std::string graph_key;
  GraphPtr graph;
};
// -- of the store; an error comes back where there is no room for the work either
struct LoadScope {
  ScopeId scope = 0;
  JobName job;
  std::string name;                             // ScopeLoaded
  std::shared_ptr<const ScopeRecords> records;  // JobCall's
};
struct LoadPinAgain {
  ScopeId scope = 0;
  JobName job;
  std::string name;  // PinLoadedAgain
};
struct LoadPinnedPlan {
  FetchId fetch;
  Pin pin;  // PinnedPlanCame
};
struct StoreUnplanned {
  JobName job;
  uint64_t generation = 0;  // UnplannedStored
};
struct StoreAgreed {
  ScopeId scope = 0;
  JobName job;
  std::string name;
  Pin pin;
  PlanReplyPtr reply;
  Actor by;            // of the first that presented it; AgreedStored
  bool again = false;  // its ranks have been told: there was no pin then
};
struct AnswerFromStore {  // with the pinned plan; the call is out of the machine's hands
  CallId call = 0;
  PlanOutcome outcome = PlanOutcome::kHit;
  std::shared_ptr<const Pin> pin;  // the same for all of a scope: its key may be long
  std::string job;
};
// -- of workers
struct WeighPlans {  // both for the request's costs; PlansWeighed
  FetchId fetch;
  GraphPtr graph;
  PlanReplyPtr pinned;
  PlanAnswer fresh;
  std::shared_ptr<PlanRequest> request;
};
struct CompareGraphs {
  ScopeId scope = 0;
  uint64_t number = 0;  // of the comparison: ranks may change their minds meanwhile
  std::array<std::string, 2> graph_keys;  // DifferenceSought
};
struct DecodeGraph {  // and offer it to the broker; GraphDecoded
  ScopeId scope = 0;
  size_t signature = 0;
  std::string graph_key;
  Digest digest{};
  std::shared_ptr<const InlineGraph> graph;
};
// -- of the clock: TimerFired
struct ArmTimer {
  TimerId timer;
  SteadyTime at;
};
struct CancelTimer {
  uint64_t number = 0;
};

using Action = std::variant<AskBroker, GiveUpFetch, HurryFetch, OfferGraph, LoadScope, LoadPinAgain,
                            LoadPinnedPlan, StoreUnplanned, StoreAgreed, AnswerFromStore,
                            WeighPlans, CompareGraphs, DecodeGraph, ArmTimer, CancelTimer>;

// One line of the log.
struct Note {
  bool warn = false;
  absl::string_view text;  // a literal
  std::vector<LogField> fields;
  CallIds call;  // {}: the one that the work is done for
};

// The store could not say whether there is a pin; a pin's plan was not there any more; agreed plans
// that were handed out without a pin; jobs whose pins made room for others'; jobs with ranks that
// wait, and ranks, that gave way to others'.
enum class Tally {
  kPinUnread,
  kPinLost,
  kUnpinnedQuota,
  kUnpinnedStore,
  kDisplaced,
  kJobDisplaced,
  kRankDisplaced
};
inline constexpr size_t kTallies = static_cast<size_t>(Tally::kRankDisplaced) + 1;
struct ScopeEnded {
  AgreementOutcome outcome;
  double seconds = 0.0;  // since its first rank came
};
using Count = std::variant<Tally, ReplanOutcome, ScopeEnded>;

// Everything that one event led to: counts first, then answers, then the rest in its order.
struct Actions {
  std::vector<Count> counts;
  std::vector<std::pair<CallId, absl::StatusOr<PlanAnswer>>> answers;
  std::vector<Note> notes;
  std::vector<Action> rest;
};

}  // namespace bucketd
