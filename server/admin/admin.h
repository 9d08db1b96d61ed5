// What the Admin service does, without gRPC: reports on a running server and changes it.
// Thread-safe. Every call may block on the disk; the caller's thread is not gRPC's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "proto/admin.pb.h"
#include "proto/peer.pb.h"
#include "server/base/metrics.h"
#include "server/cluster/membership.h"
#include "server/config/options.h"
#include "server/costs/cost_catalog.h"
#include "server/jobs/agreement_metrics.h"
#include "server/plans/plan_cache.h"
#include "server/plans/planning_switch.h"
#include "server/store/store.h"
#include "server/store/store_metrics.h"
#include "server/tenants/quotas.h"

namespace bucketd {

// The most lines that an answer with a limit has.
inline constexpr int32_t kMaxListed = 10'000;

// `asked`, or the usual number for 0; REQUEST_MALFORMED.
absl::StatusOr<int32_t> ListLimit(int32_t asked, int32_t by_default);

// What the other replicas of this server have, as far as they answer.
struct JobsElsewhere {
  std::vector<v1::JobStatus> jobs;
  bool truncated = false;
  std::vector<v1::NotReached> not_reached;
};
struct ForgottenElsewhere {
  std::set<std::string> jobs;  // that the pattern fits
  std::vector<v1::NotReached> not_reached;
};

// What jobs, and replicas alone, offer to operators.
struct AdminHooks {
  // Scopes of jobs, in any order.
  std::function<std::vector<v1::JobStatus>()> jobs;
  // Empty where this server is no replica, as the next and `cluster`. The others have to answer
  // within seconds.
  std::function<JobsElsewhere(const v1::ShowJobsRequest& asked)> jobs_elsewhere;
  std::function<ForgottenElsewhere(const v1::ForgetJobsRequest& jobs)> forget_elsewhere;
  // How many pins now live until `expires`; NOT_FOUND: the job has none.
  std::function<absl::StatusOr<uint32_t>(const std::string& tenant, const std::string& job,
                                         WallTime expires, const Actor& by)>
      pin_job;
  std::function<absl::StatusOr<v1::UnpinJobResponse>(const v1::UnpinJobRequest& request,
                                                     const Actor& by)>
      unpin_job;
  std::function<ClusterView()> cluster;
};

// What the composition root knows.
struct ServerState {
  bool draining = false;
  std::string address;
  std::string http_address;
  std::chrono::steady_clock::time_point started;
};

class Admin {
 public:
  struct Parts {  // all outlive this
    const ServerOptions& options;
    ServerMetrics& metrics;
    PlanCache& cache;
    PlanningSwitch& planning;
    Store& store;
    const StoreMetrics& store_metrics;
    std::string store_path;  // "": it is in memory, and gone with the process
    AgreementMetrics& agreement_metrics;
    const CostCatalog& costs;
    const Quotas& quotas;
    std::function<ServerState()> state;
    AdminHooks hooks;
  };

  explicit Admin(Parts parts) : parts_(std::move(parts)) {}

  // Never fails: what cannot be read is said in the answer.
  v1::GetStatusResponse GetStatus() const;
  absl::StatusOr<v1::ListPlansResponse> ListPlans(const v1::ListPlansRequest& request) const;
  absl::StatusOr<v1::EvictPlansResponse> EvictPlans(const v1::EvictPlansRequest& request,
                                                    const Actor& by);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) const;
  absl::StatusOr<v1::PinJobResponse> PinJob(const v1::PinJobRequest& request, const Actor& by);
  absl::StatusOr<v1::UnpinJobResponse> UnpinJob(const v1::UnpinJobRequest& request,
                                                const Actor& by);
  absl::StatusOr<v1::SetPlanningResponse> SetPlanning(const v1::SetPlanningRequest& request,
                                                      const Actor& by);
  absl::StatusOr<v1::ListAuditResponse> ListAudit(const v1::ListAuditRequest& request) const;
  absl::StatusOr<v1::ListTenantsResponse> ListTenants(const v1::ListTenantsRequest& request) const;

 private:
  void FillPlans(v1::GetStatusResponse& status) const;
  void FillLoad(v1::LoadStatus& load) const;
  void FillGivenUp(v1::GivenUp& given_up) const;
  void FillStore(v1::GetStatusResponse& status) const;
  void FillErrors(v1::GetStatusResponse& status) const;
  void FillTenants(v1::GetStatusResponse& status) const;
  void FillCluster(v1::GetStatusResponse& status) const;

  const Parts parts_;
};

// The value of one field of a plan's key (plan_key.h), unescaped; "" if there is none.
std::string PlanKeyField(absl::string_view key, absl::string_view name);

}  // namespace bucketd
