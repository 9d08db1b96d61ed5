// Who calls, and whether it may: what every handler asks before anything else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"

#include "server/identity/caller.h"
#include "server/identity/identities.h"
#include "server/identity/identity_metrics.h"
#include "server/identity/token_memory.h"
#include "server/rpc/request_bytes.h"
#include "server/store/audit.h"

namespace bucketd {

// Whether a caller without a name, at `peer` as gRPC names it ("unix:...",
// "ipv4:127.0.0.1:4711"), may do what operators do under --admin=`policy`; else ADMIN_NOT_ALLOWED
// with what to do about it.
absl::Status CheckAdminPeer(absl::string_view policy, absl::string_view peer);

// How the audit log names a caller.
Actor ActorOf(const Caller& caller, const grpc::CallbackServerContext& context);

// Thread-safe.
class Admission {
 public:
  // Those in force. Empty: the listener has no TLS, and callers have no names.
  using IdentitiesNow = std::function<std::shared_ptr<const Identities>()>;

  struct Rules {
    std::string admin_policy;
    IdentitiesNow identities;
    std::string file;  // where the identities come from, for errors
    // A call's token says who calls, and its connection's certificate does only where there is no
    // token. Else tokens are not looked at.
    bool tokens = false;
  };

  // `metrics` outlives this.
  Admission(Rules rules, IdentityMetrics& metrics);

  // CALLER_UNKNOWN, ROLE_MISSING, TENANT_DIFFERS (caller.h) or ADMIN_NOT_ALLOWED; OVERLOADED for a
  // new token from a host that has shown many wrong ones.
  absl::StatusOr<Caller> Admit(Method method, const grpc::CallbackServerContext& context) const;
  // The tenant of a message, by Caller::TenantFor.
  absl::StatusOr<std::string> TenantFor(const Caller& caller, absl::string_view said) const;
  // A small request, its tenant filled in, where no more of the caller is of interest: nothing of
  // it is read before the caller may call.
  template <typename Request>
  absl::StatusOr<Request> Read(Method method, const grpc::CallbackServerContext& context,
                               RequestBytes& bytes) const {
    return ReadFor<Request>(Admit(method, context), bytes);
  }
  // The same for who was admitted already; the caller's error if he was not.
  template <typename Request>
  absl::StatusOr<Request> ReadFor(const absl::StatusOr<Caller>& caller, RequestBytes& bytes) const {
    if (!caller.ok()) return caller.status();
    absl::StatusOr<Request> request = bytes.Read<Request>();
    if (!request.ok()) return request;
    absl::StatusOr<std::string> tenant = TenantFor(*caller, request->tenant());
    if (!tenant.ok()) return tenant.status();
    request->set_tenant(*std::move(tenant));
    return request;
  }

 private:
  absl::StatusOr<Caller> Identify(const grpc::CallbackServerContext& context) const;
  absl::StatusOr<Caller> ByToken(absl::string_view token, const std::string& host,
                                 const std::shared_ptr<const Identities>& identities) const;
  absl::StatusOr<Caller> ByNames(const std::vector<std::string>& names,
                                 const Identities& identities) const;

  const Rules rules_;
  IdentityMetrics& metrics_;
  mutable TokenMemory tokens_;
};

}  // namespace bucketd
