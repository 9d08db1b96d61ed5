// What tenants may have and have, as they and operators see it.
#include <algorithm>
#include <string>
#include <vector>

#include "server/admin/admin.h"

namespace bucketd {
namespace {

void Fill(const TenantUse& use, v1::TenantStatus& status) {
  status.set_tenant(use.tenant);
  status.set_named(use.named);
  status.set_weight(use.limits.weight);
  for (size_t i = 0; i < kQuotas; ++i) {
    v1::QuotaStatus& quota = *status.add_quotas();
    quota.set_name(std::string(Name(static_cast<Quota>(i))));
    quota.set_used(use.used[i]);
    if (use.limits.most[i] != kUnbounded) quota.set_limit(use.limits.most[i]);
    quota.set_refused(use.refused[i]);
  }
}

constexpr size_t kMaxInStatus = 300;

}  // namespace

void Admin::FillTenants(v1::GetStatusResponse& status) const {
  std::vector<TenantUse> all = parts_.quotas.List();
  if (all.size() > kMaxInStatus) {
    std::stable_partition(all.begin(), all.end(), [](const TenantUse& use) { return use.named; });
    all.resize(kMaxInStatus);
  }
  for (const TenantUse& use : all) Fill(use, *status.add_tenants());
}

absl::StatusOr<v1::ListTenantsResponse> Admin::ListTenants(
    const v1::ListTenantsRequest& request) const {
  v1::ListTenantsResponse response;
  for (const TenantUse& use : parts_.quotas.List()) {
    if (request.has_tenant() && use.tenant != request.tenant()) continue;
    Fill(use, *response.add_tenants());
  }
  return response;
}

}  // namespace bucketd
