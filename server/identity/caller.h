// On whose behalf a call is made.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "server/identity/roles.h"

namespace bucketd {

struct Caller {
  std::string name;  // "URI:spiffe://...", as the identities file has it; "": nobody was asked
  std::string tenant;
  bool any_tenant = true;
  RoleSet roles;

  bool known() const { return !name.empty(); }
  // The tenant of a message: the caller's own where the message names none. TENANT_DIFFERS if it
  // names another.
  absl::StatusOr<std::string> TenantFor(absl::string_view said) const;
  // Begins a key of what it sent, since callers of other tenants may send the same bytes: "" where
  // nobody is asked, else another one for each tenant, and none the beginning of another.
  std::string KeyPrefix() const;
};

// OK, ROLE_MISSING or TENANT_DIFFERS, for a caller who is known. `identities` is the file that
// could give it the role.
absl::Status CheckRole(const Caller& caller, Method method, absl::string_view identities);

}  // namespace bucketd
