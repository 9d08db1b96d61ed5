#include "server/plans/stored_plans.h"

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/io/proto_io.h"

namespace bucketd {
namespace {

// Reads take tens of microseconds; those of a slow disk must not fill the memory.
constexpr int kThreads = 2;
constexpr int kQueue = 4096;
constexpr std::chrono::seconds kRefresh{60};
constexpr size_t kUsesAtATime = 256;

}  // namespace

StoredPlans::StoredPlans(const Parts& parts) : parts_(parts), pool_(kThreads, kQueue) {}

bool StoredPlans::TrySubmit(std::function<void()> job) {
  if (pool_.TrySubmit(std::move(job))) return true;
  parts_.metrics.Read(StoreValue::kPlan, StoreRead::kError, "too many plans wait to be read");
  return false;
}

absl::StatusOr<PlanReplyPtr> StoredPlans::Find(const std::string& key, const Digest& graph) {
  return Read(key, graph, parts_.store.GetPlan(key));
}

absl::StatusOr<PlanReplyPtr> StoredPlans::Read(const std::string& key, const Digest& graph,
                                               absl::StatusOr<std::optional<std::string>> bytes) {
  if (absl::IsDataLoss(bytes.status())) return PlanReplyPtr();  // counted and taken away
  if (!bytes.ok()) return bytes.status();
  if (!bytes->has_value()) return PlanReplyPtr();
  const absl::StatusOr<Plan> plan = ParsePlan(**bytes);
  if (plan.ok() && plan->graph_digest == graph) {
    return EncodePlanReply(**std::move(bytes), key);
  }
  // As whole as it was written, but not what its key promises: an import, or a fault of ours.
  parts_.metrics.Problem(
      true, absl::StrCat("the plan stored for graph ", ToHex(graph), " is not one: ",
                         plan.ok() ? "made for another graph" : plan.status().message()));
  PlanSelection wrong;
  wrong.key = key;
  const absl::StatusOr<int64_t> gone = parts_.store.EvictPlans(wrong);
  if (!gone.ok()) parts_.metrics.Problem(false, gone.status().message());
  return PlanReplyPtr();
}

bool StoredPlans::Save(const PlanRequest& request, absl::string_view plan,
                       const std::optional<Record>& lease) {
  // Counted and logged by the store's observer.
  const absl::Status put = lease.has_value()
                               ? parts_.store.PutPlanAndErase(request.key, request.tenant, plan,
                                                              Shelf::kReplicas, *lease)
                               : parts_.store.PutPlan(request.key, request.tenant, plan);
  if (put.ok()) KeepWithinQuota(request.tenant);
  return put.ok();
}

void StoredPlans::KeepWithinQuota(const std::string& tenant) {
  const int64_t most = parts_.quotas.LimitOf(Quota::kPlanBytes, tenant);
  if (most == kUnbounded) return;  // what it has is counted with the rest, once a minute
  const absl::StatusOr<int64_t> kept = parts_.store.KeepWithin(tenant, most);
  if (!kept.ok()) return;  // counted and logged; the next plan tries again
  parts_.quotas.Set(Quota::kPlanBytes, tenant, *kept);
}

// Where too many reads wait, a minute later.
void StoredPlans::Start() {
  if (!pool_.TrySubmit([this] { Refresh(); })) StartLater();
}

void StoredPlans::StartLater() {
  parts_.timers.Schedule(std::chrono::steady_clock::now() + kRefresh, [this] { Start(); });
}

void StoredPlans::Stop() { pool_.Stop(); }

void StoredPlans::Refresh() {
  std::vector<std::string> used;
  do {
    used = parts_.cache.TakeUsed(kUsesAtATime);
    for (const std::string& key : used) parts_.store.NoteUse(key);
  } while (used.size() == kUsesAtATime);
  const absl::StatusOr<StoreStats> stats = parts_.store.Stats();
  if (stats.ok()) {
    parts_.metrics.Show(*stats, WallNow());
  } else {
    parts_.metrics.Problem(false, stats.status().message());
  }
  const absl::StatusOr<std::map<std::string, int64_t>> bytes = parts_.store.PlanBytes();
  if (bytes.ok()) {
    parts_.quotas.SetAll(Quota::kPlanBytes, *bytes);
    for (const auto& [tenant, unused] : *bytes) KeepWithinQuota(tenant);
  }
  StartLater();
}

}  // namespace bucketd
