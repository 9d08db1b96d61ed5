#include "server/rpc/admission.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/security/auth_context.h"
#include <grpc/grpc_security_constants.h>

#include "passes/base/status_macros.h"
#include "server/base/errors.h"
#include "server/base/host.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

constexpr size_t kMaxNames = 32;  // of one certificate
constexpr size_t kMaxShown = 8;
constexpr size_t kMaxShownBytes = 256;
constexpr absl::string_view kBearer = "Bearer ";

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

// The credentials of the call itself: "authorization: Bearer TOKEN". Nothing: it has none.
absl::StatusOr<std::optional<absl::string_view>> TokenOf(
    const grpc::CallbackServerContext& context) {
  const auto [begin, end] = context.client_metadata().equal_range("authorization");
  if (begin == end) return std::nullopt;
  absl::string_view value(begin->second.data(), begin->second.size());
  if (std::next(begin) != end || !absl::StartsWithIgnoreCase(value, kBearer)) {
    return MakeError(Reason::kCallerUnknown,
                     "expected one authorization of the call, which begins with \"Bearer \"");
  }
  value.remove_prefix(kBearer.size());
  return value;
}

absl::Status Unknown(const std::vector<std::string>& names, const std::string& file) {
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

Actor ActorOf(const Caller& caller, const grpc::CallbackServerContext& context) {
  return {caller.name, AddressOf(context.peer()),
          caller.any_tenant ? std::string(kAllTenants) : caller.tenant};
}

Admission::Admission(Rules rules, IdentityMetrics& metrics)
    : rules_(std::move(rules)), metrics_(metrics) {}

absl::StatusOr<Caller> Admission::ByNames(const std::vector<std::string>& names,
                                          const Identities& identities) const {
  std::string fits;
  const Identity* identity = identities.Find(names, &fits);
  if (identity == nullptr) return Unknown(names, rules_.file);
  return Caller{Shown(fits), identity->tenant, identity->any_tenant, identity->roles};
}

absl::StatusOr<Caller> Admission::ByToken(
    absl::string_view token, const std::string& host,
    const std::shared_ptr<const Identities>& identities) const {
  const absl::StatusOr<std::string> name =
      tokens_.NameIn(token, host, identities, absl::ToUnixSeconds(absl::Now()));
  if (name.ok()) return ByNames({*name}, *identities);
  const bool later = absl::IsResourceExhausted(name.status());
  return MakeError(later ? Reason::kOverloaded : Reason::kCallerUnknown,
                   absl::StrCat("the caller's token: ", name.status().message()));
}

absl::StatusOr<Caller> Admission::Identify(const grpc::CallbackServerContext& context) const {
  const std::shared_ptr<const Identities> identities = rules_.identities();
  if (rules_.tokens) {
    ASSIGN_OR_RETURN(const std::optional<absl::string_view> token, TokenOf(context));
    if (token.has_value()) return ByToken(*token, HostOf(context.peer()), identities);
  }
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  const std::vector<std::string> names = NamesOf(*peer);
  if (!names.empty()) return ByNames(names, *identities);
  return MakeError(Reason::kCallerUnknown,
                   peer->IsPeerAuthenticated()
                       ? "the caller's certificate has no URI and no DNS name among its subject "
                         "alternative names"
                       : "the call came with no token and its connection with no certificate");
}

absl::StatusOr<Caller> Admission::Admit(Method method,
                                        const grpc::CallbackServerContext& context) const {
  const bool for_operators = RuleOf(method).for_operators();
  if (rules_.identities == nullptr) {
    if (for_operators) RETURN_IF_ERROR(CheckAdminPeer(rules_.admin_policy, context.peer()));
    return Caller();
  }
  absl::StatusOr<Caller> caller = Identify(context);
  if (!caller.ok()) {
    metrics_.unknown_callers.Increment();
    return caller;
  }
  absl::Status allowed = CheckRole(*caller, method, rules_.file);
  // Where callers have names, it is their role that lets operators in, wherever they are.
  if (allowed.ok() && for_operators && rules_.admin_policy == "off") {
    allowed = CheckAdminPeer(rules_.admin_policy, context.peer());
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

}  // namespace bucketd
