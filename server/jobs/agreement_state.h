// What Agreement (agreement.h) remembers. Plain data, guarded by its lock.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"

#include "passes/base/digest.h"
#include "server/base/timers.h"
#include "server/graphs/graph_store.h"
#include "server/jobs/job_call.h"
#include "server/jobs/pins.h"
#include "server/plans/plan_broker.h"

namespace bucketd {

using RankList = absl::InlinedVector<uint32_t, 2>;
using ProfilePtr = decltype(PlanRequest::profile);

// One signature that ranks of a scope presented.
struct Presented {
  size_t index = 0;  // in ScopeState::presented
  Digest graph{};
  bool fresh = false;
  // Of the first few signatures only, and of one that is the only one left.
  std::string text;
  std::shared_ptr<PlanRequest> request;

  std::set<uint64_t> calls;  // that wait, the oldest first
  uint32_t live = 0;         // ranks that these speak for
  RankList asked;            // ranks of the caller that was last asked for the graph

  uint64_t probe = 0;                  // the fetch that is under way; 0: none
  PlanBroker::CallId broker_call = 0;  // of it, once the broker has said so
  uint64_t inline_sender = 0;          // the call whose inline graph it carries
  bool retry_is_due = false;           // the server was overloaded; a timer asks again
  absl::Status last_error;             // of such a refusal

  // While a pinned plan is weighed against one under the costs of now.
  PlanReplyPtr pinned;
  GraphPtr graph_to_judge;  // null if it rode along with a call
  bool replan_is_limited = false;

  std::optional<PlanBroker::Answer> result;

  bool asked_to_compare = false;
  bool decoding = false;  // its inline graph, to be compared
};

enum class ScopeStage {
  kLoading,    // its pin is being read
  kGathering,  // ranks are coming, and the plan
  kComparing,  // all came, with different signatures: two graphs are wanted for the message
  kStoring,    // all agree and the plan is here; the pin is being written
  kAgreed,
  kFailed,
};

struct JobState;

struct ScopeState {
  uint64_t id = 0;
  std::string name;
  JobState* job = nullptr;
  uint32_t size = 0;
  ScopeStage stage = ScopeStage::kLoading;
  SteadyTime since;  // its first rank
  CallIds call;      // of the first rank: what happens to all is logged under its name

  std::optional<Pin> pin;  // of an earlier generation
  std::string pin_signature;

  int64_t bytes = 0;  // of signatures and requests that are kept

  // While ranks wait.
  absl::flat_hash_map<uint32_t, uint64_t> live;  // rank to the call that speaks for it
  std::deque<Presented> presented;
  absl::flat_hash_map<Digest, size_t> by_signature;
  size_t live_signatures = 0;
  std::set<std::pair<SteadyTime, uint64_t>> deadlines;  // of calls
  Timers::Id deadline_timer = 0;
  SteadyTime deadline_timer_at;
  bool expired = false;  // the deadline has come; the broker is asked what it waited for

  std::array<size_t, 2> compared{};
  Timers::Id compare_timer = 0;
  bool difference_is_sought = false;

  // kStoring, kAgreed.
  Pin agreed;
  std::string agreed_signature;
  PlanReplyPtr reply;  // in kAgreed only where there is no pin
  PlanOutcome outcome = PlanOutcome::kHit;
  uint64_t first_call = 0;
  bool pinned = false;

  absl::Status refusal;  // of a rank whose call cannot be served
  RankList turned_away;  // ranks that there was no room for, a few of them
  bool pin_read_again = false;

  // kFailed.
  absl::Status verdict;
  absl::flat_hash_set<uint32_t> told;  // ranks that know of it
};

using JobName = std::pair<std::string, std::string>;  // tenant, id

// What a name like `latest` stands for in a generation.
struct FixedProfile {
  std::string id;      // "name@version"
  ProfilePtr profile;  // null until it is first used after a restart
};

struct JobState {
  JobName name;
  uint64_t generation = 0;
  bool loaded = false;  // its memory has been read from the store
  std::optional<std::string> unplanned;
  bool unplanned_is_stored = false;
  std::map<std::string, FixedProfile> profiles;  // by what was asked for
  std::map<std::string, std::unique_ptr<ScopeState>> scopes;
  std::string last_agreed;  // scope
  int64_t waiting = 0;      // calls
  SteadyTime used;
  std::list<JobState*>::iterator at;  // in the order of use
};

// A call that waits.
struct WaitingCall {
  ScopeState* scope = nullptr;
  size_t signature = 0;
  RankList ranks;
  SteadyTime answer_by;
  PlanBroker::Done done;
};

}  // namespace bucketd
