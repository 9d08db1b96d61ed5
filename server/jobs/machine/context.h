// What all parts of the machine share: its bounds, what it may look at, the event's time, and where
// its actions gather.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"

#include "server/base/shares.h"
#include "server/graphs/graph_store.h"
#include "server/jobs/machine/actions.h"
#include "server/jobs/machine/job_places.h"
#include "server/plans/plan_request.h"

namespace bucketd {

class Scope;

using ProfilePtr = decltype(PlanRequest::profile);
using RankList = absl::InlinedVector<uint32_t, 2>;

struct AgreementLimits {
  int64_t max_jobs = 4096;
  int64_t max_waiting_ranks = 262'144;  // calls
  std::chrono::milliseconds job_idle{std::chrono::hours(24)};
  std::chrono::milliseconds upload_lease{10'000};
  int64_t replan_gain_ppm = 0;  // CostOptions
  // Other servers may have taken the jobs over of one that stood still for so long. 0: there are
  // none.
  std::chrono::milliseconds taken_over_after{0};
};

// What is here now, as far as the machine has to know. Short, without waiting, none of it calls
// back.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual GraphPtr Graph(const std::string& graph_key) const = 0;  // null: not here
  virtual bool HasGraph(const std::string& graph_key) const = 0;
  // The profile that is called "name@version" in a job's memory.
  virtual absl::StatusOr<ProfilePtr> Profile(const std::string& id) const = 0;
  // Why new generations stay unplanned, if they do.
  virtual std::optional<std::string> PlanningDisabled() const = 0;
};

// A call that waits.
struct WaitingCall {
  Scope* scope = nullptr;
  size_t signature = 0;
  RankList ranks;
  SteadyTime answer_by;
  Shares::Path share;
};

struct MachineContext {
  MachineContext(const AgreementLimits& bounds, const Surroundings& surroundings)
      : limits(bounds), around(surroundings) {}

  const AgreementLimits limits;
  const Surroundings& around;
  SteadyTime now;  // of the event that is being handled
  // When this process was found to have been stopped, so that ranks may have left without its
  // knowing.
  SteadyTime stopped = SteadyTime::min();
  Actions out;

  absl::flat_hash_map<CallId, WaitingCall> calls;
  Shares call_places;
  JobPlaces job_places;
  int64_t waiting_ranks = 0;
  uint64_t last_id = 0;
  bool draining = false;

  uint64_t NewId() { return ++last_id; }
  void Do(Action action) { out.rest.push_back(std::move(action)); }
  void Inform(Note note) { out.notes.push_back(std::move(note)); }
  void Warn(Note note) {
    note.warn = true;
    Inform(std::move(note));
  }
  void Tell(CallId call, absl::StatusOr<PlanAnswer> answer) {
    out.answers.emplace_back(call, std::move(answer));
  }
  double SecondsSince(SteadyTime since) const {
    return std::chrono::duration<double>(now - since).count();
  }
};

}  // namespace bucketd
