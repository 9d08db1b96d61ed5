#include "server/rpc/admission.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpcpp/security/auth_context.h"
#include <grpc/grpc_security_constants.h>

#include "passes/base/status_macros.h"
#include "server/base/errors.h"

namespace bucketd {
namespace {

constexpr size_t kMaxNames = 32;  // of one certificate
constexpr size_t kMaxShown = 8;
constexpr size_t kMaxShownBytes = 256;

// For messages and logs: whoever signs certificates chooses what stands in them.
std::string Shown(absl::string_view name) {
  return absl::CHexEscape(name.substr(0, kMaxShownBytes));
}

// Of the certificate that the connection was made with.
std::vector<std::string> NamesOf(const grpc::AuthContext& peer) {
  std::vector<std::string> names;
  if (!peer.IsPeerAuthenticated()) return names;
  for (const auto& [property, kind] :
       {std::pair(GRPC_PEER_URI_PROPERTY_NAME, "URI:"), {GRPC_PEER_DNS_PROPERTY_NAME, "DNS:"}}) {
    for (const grpc::string_ref& value : peer.FindPropertyValues(property)) {
      if (names.size() == kMaxNames) return names;
      names.push_back(absl::StrCat(kind, absl::string_view(value.data(), value.size())));
    }
  }
  return names;
}

absl::Status Unknown(const std::vector<std::string>& names, const std::string& file) {
  if (names.empty()) {
    return MakeError(Reason::kCallerUnknown,
                     "the caller's certificate has no URI and no DNS name among its subject "
                     "alternative names");
  }
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kMaxShown); ++i) shown.push_back(Shown(names[i]));
  return MakeError(
      Reason::kCallerUnknown,
      absl::StrCat("none of the caller's names stands in the server's ", file, ": ",
                   absl::StrJoin(shown, ", "), names.size() > kMaxShown ? " and more" : ""));
}

}  // namespace

absl::Status CheckAdminPeer(absl::string_view policy, absl::string_view peer) {
  if (policy == "remote") return absl::OkStatus();
  if (policy == "off") {
    return MakeError(Reason::kAdminNotAllowed, "the Admin service is off (--admin off)");
  }
  // Brackets and colons of IPv6 may come percent-encoded; an IPv4 caller of an IPv6 listener comes
  // as a mapped address.
  for (const char* local : {"unix:", "unix-abstract:", "ipv4:127.", "ipv6:[::1]:",
                            "ipv6:%5B::1%5D:", "ipv6:[::ffff:127.", "ipv6:%5B::ffff:127."}) {
    if (absl::StartsWith(peer, local)) return absl::OkStatus();
  }
  return MakeError(
      Reason::kAdminNotAllowed,
      absl::StrCat("the Admin service answers callers on the server's own machine; this "
                   "one comes from ",
                   peer, ". Run bucketctl there, or start bucketd with --admin remote"));
}

Admission::Admission(std::string admin_policy, IdentitiesNow identities, std::string file,
                     IdentityMetrics& metrics)
    : admin_policy_(std::move(admin_policy)),
      identities_(std::move(identities)),
      file_(std::move(file)),
      metrics_(metrics) {}

absl::StatusOr<Caller> Admission::Identify(const grpc::CallbackServerContext& context) const {
  const std::vector<std::string> names = NamesOf(*context.auth_context());
  std::string fits;
  const std::shared_ptr<const Identities> identities = identities_();
  const Identity* identity = identities->Find(names, &fits);
  if (identity == nullptr) return Unknown(names, file_);
  return Caller{Shown(fits), identity->tenant, identity->any_tenant, identity->roles};
}

absl::StatusOr<Caller> Admission::Admit(Method method,
                                        const grpc::CallbackServerContext& context) const {
  const bool for_operators = RuleOf(method).for_operators();
  if (identities_ == nullptr) {
    if (for_operators) RETURN_IF_ERROR(CheckAdminPeer(admin_policy_, context.peer()));
    return Caller();
  }
  absl::StatusOr<Caller> caller = Identify(context);
  if (!caller.ok()) {
    metrics_.unknown_callers.Increment();
    return caller;
  }
  absl::Status allowed = CheckRole(*caller, method, file_);
  // Where callers have names, it is their role that lets operators in, wherever they are.
  if (allowed.ok() && for_operators && admin_policy_ == "off") {
    allowed = CheckAdminPeer(admin_policy_, context.peer());
  }
  if (allowed.ok()) return caller;
  metrics_.forbidden_calls.Increment();
  return allowed;
}

absl::StatusOr<std::string> Admission::TenantFor(const Caller& caller,
                                                 absl::string_view said) const {
  absl::StatusOr<std::string> tenant = caller.TenantFor(said);
  if (!tenant.ok()) metrics_.forbidden_calls.Increment();
  return tenant;
}

absl::StatusOr<std::string> Admission::TenantOf(Method method,
                                                const grpc::CallbackServerContext& context,
                                                absl::string_view said) const {
  ASSIGN_OR_RETURN(const Caller caller, Admit(method, context));
  return TenantFor(caller, said);
}

}  // namespace bucketd
