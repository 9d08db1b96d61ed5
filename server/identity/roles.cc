#include "server/identity/roles.h"

#include <array>

#include "absl/strings/str_cat.h"

#include "server/base/named.h"

namespace bucketd {
namespace {

constexpr std::array<Named<CallerRole>, kRoles> kNames = {{
    {CallerRole::kPlan, "plan"},
    {CallerRole::kReport, "report"},
    {CallerRole::kPromote, "promote"},
    {CallerRole::kAdmin, "admin"},
    {CallerRole::kPeer, "peer"},
}};
static_assert(IsByPosition(kNames));

// Whoever plans, measures or decides may read the costs that plans are made with.
constexpr RoleSet kReadsCosts = {CallerRole::kPlan, CallerRole::kReport, CallerRole::kPromote,
                                 CallerRole::kAdmin};

constexpr std::array<MethodRule, kMethods> kRules = {{
    {Method::kGetCapabilities, {}},  // says what there is, and that the server is there
    {Method::kGetPlan, {CallerRole::kPlan}},
    {Method::kUploadGraph, {CallerRole::kPlan, CallerRole::kPeer}},  // that was uploaded to another
    {Method::kQueryUpload, {CallerRole::kPlan}},
    {Method::kGetStatus, {CallerRole::kAdmin}, /*of_all_tenants=*/true},
    {Method::kListPlans, {CallerRole::kAdmin}},
    {Method::kEvictPlans, {CallerRole::kAdmin}},
    {Method::kListJobs, {CallerRole::kAdmin}},
    {Method::kPinJob, {CallerRole::kAdmin}},
    {Method::kUnpinJob, {CallerRole::kAdmin}},
    {Method::kSetPlanning, {CallerRole::kAdmin}, /*of_all_tenants=*/true},
    {Method::kListAudit, {CallerRole::kAdmin}},
    {Method::kListTenants, {CallerRole::kPlan, CallerRole::kAdmin}},  // one's own
    {Method::kReleaseJob, {CallerRole::kPlan}},
    {Method::kListProfiles, kReadsCosts},
    {Method::kGetProfile, kReadsCosts},
    {Method::kReportCosts, {CallerRole::kReport}},
    // Tenants share profiles.
    {Method::kImportProfile, {CallerRole::kPromote}, /*of_all_tenants=*/true},
    {Method::kProposeProfile, {CallerRole::kPromote}, /*of_all_tenants=*/true},
    {Method::kPromoteProfile, {CallerRole::kPromote}, /*of_all_tenants=*/true},
    {Method::kRollbackProfile, {CallerRole::kPromote}, /*of_all_tenants=*/true},
    {Method::kRendezvous, {CallerRole::kPlan}},
    {Method::kWatchEpoch, {CallerRole::kPlan}},
    {Method::kEndEpoch, {CallerRole::kPlan}},
    // Speaks for callers of any tenant.
    {Method::kForward, {CallerRole::kPeer}, /*of_all_tenants=*/true},
    {Method::kShowJobs, {CallerRole::kPeer}, /*of_all_tenants=*/true},
    {Method::kForgetJobs, {CallerRole::kPeer}, /*of_all_tenants=*/true},
}};
static_assert(IsByPosition(kRules, &MethodRule::method));

}  // namespace

absl::string_view Name(CallerRole role) { return kNames[static_cast<size_t>(role)].name; }

std::optional<CallerRole> RoleNamed(absl::string_view name) {
  for (size_t i = 0; i < kRoles; ++i) {
    if (name == kNames[i].name) return static_cast<CallerRole>(i);
  }
  return std::nullopt;
}

std::string RoleSet::InWords(absl::string_view between) const {
  std::string words;
  for (size_t i = 0; i < kRoles; ++i) {
    if (!Has(static_cast<CallerRole>(i))) continue;
    absl::StrAppend(&words, words.empty() ? "" : between, kNames[i].name);
  }
  return words.empty() ? "none" : words;
}

const MethodRule& RuleOf(Method method) { return kRules[static_cast<size_t>(method)]; }

}  // namespace bucketd
