#include "server/jobs/machine/snapshot.h"

#include "server/jobs/machine/job.h"
#include "server/jobs/machine/scope.h"

namespace bucketd {
namespace {

double Seconds(SteadyTime::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

const char* StageName(Scope::Stage stage) {
  switch (stage) {
    case Scope::Stage::kLoading:
      return "loading";
    case Scope::Stage::kGathering:
      return "gathering";
    case Scope::Stage::kComparing:
      return "comparing";
    case Scope::Stage::kStoring:
      return "storing";
    case Scope::Stage::kAgreed:
      return "agreed";
    case Scope::Stage::kFailed:
      return "failed";
  }
  return "";
}

ScopeSnapshot SnapshotOf(const Scope& scope, SteadyTime now) {
  ScopeSnapshot snapshot;
  const Scope::Stage stage = scope.stage();
  snapshot.name = scope.name();
  snapshot.stage = StageName(stage);
  snapshot.size = scope.size();
  snapshot.ranks_waiting = static_cast<int64_t>(scope.ranks().ranks());
  if (stage == Scope::Stage::kAgreed) snapshot.plan_sha256 = ToHex(scope.agreed().plan_sha256);
  snapshot.pinned = scope.pinned();
  if (stage == Scope::Stage::kFailed) snapshot.error = std::string(scope.verdict().message());
  snapshot.seconds = Seconds(now - scope.since());
  if (stage != Scope::Stage::kLoading && stage != Scope::Stage::kGathering) return snapshot;
  for (uint32_t rank = 0; rank < scope.size(); ++rank) {
    if (snapshot.missing.size() == kMaxSnapshotMissing) break;
    if (!scope.ranks().has(rank)) snapshot.missing.push_back(rank);
  }
  return snapshot;
}

}  // namespace

JobSnapshot SnapshotOf(const Job& job, SteadyTime now) {
  JobSnapshot snapshot;
  snapshot.tenant = job.name.first;
  snapshot.id = job.name.second;
  snapshot.generation = job.generation;
  snapshot.unplanned = job.unplanned;
  for (const auto& [name, scope] : job.scopes) {
    if (snapshot.scopes.size() >= kMaxSnapshotScopes) break;
    snapshot.scopes.push_back(SnapshotOf(*scope, now));
  }
  return snapshot;
}

}  // namespace bucketd
