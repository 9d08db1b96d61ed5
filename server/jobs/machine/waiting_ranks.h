// The ranks of one scope that wait now: for whom which calls speak, what they presented, and when
// they have to be answered. A rank is present while a call that speaks for it waits. Several may,
// if they present the same: a call that was cut off, or seems so, and is repeated.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "passes/base/digest.h"
#include "server/jobs/machine/context.h"
#include "server/jobs/machine/job_call.h"
#include "server/jobs/machine/plan_fetch.h"

namespace bucketd {

// One signature that ranks of a scope presented.
struct Presented {
  size_t index = 0;  // in WaitingRanks::presented
  Digest signature_id{};
  Digest graph{};
  bool fresh = false;
  // Of the first few signatures only, and of one that is the only one left.
  std::string text;
  std::shared_ptr<PlanRequest> request;
  std::unique_ptr<PlanFetch> fetch;

  std::set<CallId> calls;    // that wait, the oldest first
  uint32_t live = 0;         // ranks that these speak for
  RankList asked;            // ranks of the caller that was last asked for the graph
  CallId inline_sender = 0;  // whose inline graph the request carries

  bool asked_to_compare = false;
  bool decoding = false;  // its inline graph, to be compared

  bool has_plan() const { return fetch != nullptr && fetch->result().has_value(); }
  bool fetching() const { return fetch != nullptr && fetch->under_way(); }
  void GiveUpFetch();
};

// Ranks by what they present.
struct RankGroup {
  const Presented* presented;
  std::vector<uint32_t> ranks;  // ascending
};

class WaitingRanks {
 public:
  // The context outlives this; its calls are kept there.
  explicit WaitingRanks(MachineContext& context) : context_(context) {}

  // O(ranks of the call + log of callers). REQUIRES: none of the ranks waits with something else.
  void Add(CallId id, Scope& scope, Presented& presented, const JobCall& job, SteadyTime answer_by);
  void Take(CallId call);  // REQUIRES: it waits here
  void Clear();            // REQUIRES: nobody waits

  // The one of this signature, new if nobody has presented it.
  Presented& Of(const Digest& signature_id, const Digest& graph, bool fresh);
  bool knows(const Digest& signature_id) const { return by_signature_.contains(signature_id); }

  size_t ranks() const { return live_.size(); }
  bool none() const { return live_.empty(); }
  bool has(uint32_t rank) const { return live_.contains(rank); }
  // What a rank presents; null if it does not wait.
  const Presented* Of(uint32_t rank) const;
  size_t signatures() const { return live_signatures_; }
  // REQUIRES of the following: not none().
  CallId first_due() const { return deadlines_.begin()->second; }
  SteadyTime first_deadline() const { return deadlines_.begin()->first; }
  Presented& any();  // what one of them presents

  std::deque<Presented>& presented() { return presented_; }
  const std::deque<Presented>& presented() const { return presented_; }

  std::vector<uint32_t> Present() const;               // ascending
  std::vector<uint32_t> Missing(uint32_t size) const;  // ascending
  // Those who were asked for the graph that is compared count, though they are away with it. The
  // smallest group first: it is the odd one out. O(ranks log ranks).
  std::vector<RankGroup> Groups() const;

 private:
  struct LiveRank {
    size_t signature = 0;
    uint32_t calls = 0;
  };
  MachineContext& context_;
  absl::flat_hash_map<uint32_t, LiveRank> live_;
  std::deque<Presented> presented_;
  absl::flat_hash_map<Digest, size_t> by_signature_;
  size_t live_signatures_ = 0;
  std::set<std::pair<SteadyTime, CallId>> deadlines_;
};

}  // namespace bucketd
