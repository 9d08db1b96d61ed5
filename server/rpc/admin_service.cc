#include "server/rpc/admin_service.h"

#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "proto/admin.grpc.pb.h"
#include "server/base/errors.h"
#include "server/base/worker_pool.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

constexpr int kThreads = 1;
constexpr int kQueue = 64;

using grpc::CallbackServerContext;
using Service = v1::Admin::WithCallbackMethod_GetStatus<v1::Admin::WithCallbackMethod_ListPlans<
    v1::Admin::WithCallbackMethod_EvictPlans<v1::Admin::WithCallbackMethod_ListJobs<
        v1::Admin::WithCallbackMethod_PinJob<v1::Admin::WithCallbackMethod_UnpinJob<
            v1::Admin::WithCallbackMethod_SetPlanning<v1::Admin::Service>>>>>>>;

// One that Admin answers by itself, under the same name.
#define CALL(name)                                                                                 \
  grpc::ServerUnaryReactor* name(CallbackServerContext* context, const v1::name##Request* request, \
                                 v1::name##Response* response) override {                          \
    return Answer(Method::k##name, context, &Admin::name, request, response);                      \
  }

class AdminService final : public Service {
 public:
  AdminService(Admin& admin, std::string policy, ServerMetrics& metrics)
      : admin_(admin), policy_(std::move(policy)), metrics_(metrics), pool_(kThreads, kQueue) {}

  grpc::ServerUnaryReactor* GetStatus(CallbackServerContext* context, const v1::GetStatusRequest*,
                                      v1::GetStatusResponse* response) override {
    return Run(Method::kGetStatus, context, [this, response] {
      *response = admin_.GetStatus();
      return absl::OkStatus();
    });
  }
  CALL(ListPlans)
  CALL(EvictPlans)
  CALL(ListJobs)
  CALL(PinJob)
  CALL(UnpinJob)
  CALL(SetPlanning)
#undef CALL

 private:
  // gRPC keeps request, response and context until the reactor is done.
  template <typename Call, typename Request, typename Response>
  grpc::ServerUnaryReactor* Answer(Method method, CallbackServerContext* context, Call call,
                                   const Request* request, Response* response) {
    return Run(method, context, [this, call, request, response]() -> absl::Status {
      auto answer = (admin_.*call)(*request);
      if (answer.ok()) *response = *std::move(answer);
      return answer.status();
    });
  }

  grpc::ServerUnaryReactor* Run(Method method, CallbackServerContext* context,
                                std::function<absl::Status()> call) {
    auto scope = std::make_shared<RequestScope>(method, metrics_);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto end = [scope, reactor, context](const absl::Status& status) {
      reactor->Finish(EndRequest(*scope, *context, status, absl::StrCat("peer=", context->peer())));
    };
    const absl::Status allowed = CheckAdminPeer(policy_, context->peer());
    if (!allowed.ok()) {
      end(allowed);
    } else if (!pool_.TrySubmit([end, call = std::move(call)] { end(call()); })) {
      end(MakeError(Reason::kOverloaded, "too many Admin calls wait"));
    }
    return reactor;
  }

  Admin& admin_;
  const std::string policy_;
  ServerMetrics& metrics_;
  WorkerPool pool_;  // last: its jobs use the others
};

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

std::unique_ptr<grpc::Service> MakeAdminService(Admin& admin, const std::string& policy,
                                                ServerMetrics& metrics) {
  return std::make_unique<AdminService>(admin, policy, metrics);
}

}  // namespace bucketd
