#include "server/rpc/admin_service.h"

#include <type_traits>
#include <utility>

#include "passes/base/status_macros.h"
#include "proto/admin.grpc.pb.h"
#include "server/base/worker_pool.h"
#include "server/rpc/unary_call.h"

namespace bucketd {
namespace {

constexpr int kAdminThreads = 1;
constexpr int kAdminQueue = 64;

using grpc::ByteBuffer;
using grpc::CallbackServerContext;
using AdminMethods = v1::Admin::WithRawCallbackMethod_GetStatus<
    v1::Admin::WithRawCallbackMethod_ListPlans<v1::Admin::WithRawCallbackMethod_EvictPlans<
        v1::Admin::WithRawCallbackMethod_ListJobs<v1::Admin::WithRawCallbackMethod_PinJob<
            v1::Admin::WithRawCallbackMethod_UnpinJob<v1::Admin::WithRawCallbackMethod_SetPlanning<
                v1::Admin::WithRawCallbackMethod_ListAudit<
                    v1::Admin::WithRawCallbackMethod_ListTenants<v1::Admin::Service>>>>>>>>>;

// One that Admin answers by itself, under the same name.
#define CALL(name)                                                                               \
  grpc::ServerUnaryReactor* name(CallbackServerContext* context, const ByteBuffer* request,      \
                                 ByteBuffer* response) override {                                \
    return Answer<v1::name##Request>(Method::k##name, context, &Admin::name, request, response); \
  }

// A request of an operator who belongs to one tenant means what is of that tenant.
template <typename Message>
absl::Status KeepToTenant(const Admission& admission, const Caller& caller, Message& message) {
  if (caller.any_tenant) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string tenant, admission.TenantFor(caller, message.tenant()));
  message.set_tenant(tenant);
  return absl::OkStatus();
}
absl::Status KeepToTenant(const Admission& admission, const Caller& caller,
                          v1::ListPlansRequest& request) {
  return KeepToTenant(admission, caller, *request.mutable_selection());
}
absl::Status KeepToTenant(const Admission& admission, const Caller& caller,
                          v1::EvictPlansRequest& request) {
  const bool empty = request.selection().ByteSizeLong() == 0;
  if (empty && !request.all()) return absl::OkStatus();     // refused, whoever asks
  if (empty && !caller.any_tenant) request.set_all(false);  // all that is its own
  return KeepToTenant(admission, caller, *request.mutable_selection());
}
// Concerns all tenants.
absl::Status KeepToTenant(const Admission&, const Caller&, v1::SetPlanningRequest&) {
  return absl::OkStatus();
}

class AdminService final : public AdminMethods {
 public:
  AdminService(Admin& admin, const Admission& admission, ServerMetrics& metrics)
      : admin_(admin),
        admission_(admission),
        metrics_(metrics),
        pool_(kAdminThreads, kAdminQueue),
        switch_pool_(kAdminThreads, kAdminQueue) {}

  grpc::ServerUnaryReactor* GetStatus(CallbackServerContext* context, const ByteBuffer* request,
                                      ByteBuffer* response) override {
    return Run<v1::GetStatusRequest>(
        Method::kGetStatus, context, request, response,
        [this](const auto&, const Caller&) -> absl::StatusOr<v1::GetStatusResponse> {
          return admin_.GetStatus();
        });
  }
  CALL(ListPlans)
  CALL(EvictPlans)
  CALL(ListJobs)
  CALL(PinJob)
  CALL(UnpinJob)
  CALL(SetPlanning)
  CALL(ListAudit)
  CALL(ListTenants)
#undef CALL

 private:
  template <typename Request, typename Call>
  grpc::ServerUnaryReactor* Answer(Method method, CallbackServerContext* context, Call call,
                                   const ByteBuffer* given, ByteBuffer* response) {
    return Run<Request>(
        method, context, given, response,
        [this, call, context](Request& request,
                              const Caller& caller) -> decltype(Asked(call, request, Actor())) {
          RETURN_IF_ERROR(KeepToTenant(admission_, caller, request));
          return Asked(call, request, ActorOf(caller, *context));
        });
  }

  // What changes something is told who asks.
  template <typename Call, typename Request>
  auto Asked(Call call, const Request& request, const Actor& by) {
    if constexpr (std::is_invocable_v<Call, Admin&, const Request&, const Actor&>) {
      return (admin_.*call)(request, by);
    } else {
      return (admin_.*call)(request);
    }
  }

  template <typename Request, typename Ask>
  grpc::ServerUnaryReactor* Run(Method method, CallbackServerContext* context,
                                const ByteBuffer* given, ByteBuffer* response, Ask ask) {
    WorkerPool& pool = method == Method::kSetPlanning ? switch_pool_ : pool_;
    return AnswerOn<Request>(pool, "Admin calls", {method, *context, admission_, metrics_}, given,
                             response, std::move(ask));
  }

  Admin& admin_;
  const Admission& admission_;
  ServerMetrics& metrics_;
  WorkerPool pool_;         // last two: their jobs use the others
  WorkerPool switch_pool_;  // of SetPlanning alone, which is for emergencies
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(Admin& admin, const Admission& admission,
                                                ServerMetrics& metrics) {
  return std::make_unique<AdminService>(admin, admission, metrics);
}

}  // namespace bucketd
