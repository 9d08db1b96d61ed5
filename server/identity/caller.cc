#include "server/identity/caller.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "server/base/errors.h"

namespace bucketd {

absl::StatusOr<std::string> Caller::TenantFor(absl::string_view said) const {
  if (any_tenant) return std::string(said);
  if (said.empty() || said == tenant) return tenant;
  return MakeError(
      Reason::kTenantDiffers,
      absl::StrCat(name, " belongs to tenant \"", tenant, "\" and may not speak for \"",
                   absl::CHexEscape(said.substr(0, 128)), "\""));
}

std::string Caller::KeyPrefix() const {
  // No tenant has a NUL or is called "*".
  return known() ? absl::StrCat(any_tenant ? "*" : tenant, absl::string_view("\0", 1))
                 : std::string();
}

absl::Status CheckRole(const Caller& caller, Method method, absl::string_view identities) {
  const MethodRule& rule = RuleOf(method);
  if (!rule.one_of.empty() && !caller.roles.HasOneOf(rule.one_of)) {
    return MakeError(Reason::kRoleMissing,
                     absl::StrCat(Name(method), " wants the role ", rule.one_of.InWords(" or "),
                                  "; ", caller.name, " has ", caller.roles.InWords(),
                                  ". Roles are given in the server's ", identities));
  }
  if (rule.of_all_tenants && !caller.any_tenant) {
    return MakeError(
        Reason::kTenantDiffers,
        absl::StrCat(Name(method), " concerns all tenants; ", caller.name, " belongs to \"",
                     caller.tenant, "\". It takes tenant = \"*\" in the server's ", identities));
  }
  return absl::OkStatus();
}

}  // namespace bucketd
