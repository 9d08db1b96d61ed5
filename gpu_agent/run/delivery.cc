#include "gpu_agent/run/delivery.h"

#include "absl/strings/str_cat.h"
#include "client/cost_client.h"

#include "gpu_agent/run/command.h"
#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"

namespace bucketd::agent {
namespace {

std::string Id(const v1::ProfileVersion& version) {
  return absl::StrCat(version.name(), "@", version.version());
}

absl::StatusOr<std::string> Send(const CostProfile& profile, const Delivery& delivery) {
  client::CostClient client(delivery.planner, delivery.tls);
  v1::ImportProfileRequest request;
  ProfileToProto(profile, *request.mutable_profile());
  request.set_by(absl::StrCat("bucket-agent on ", HostName()));
  ASSIGN_OR_RETURN(const v1::ImportProfileResponse done, client.Import(request));
  const v1::ProfileVersion& version = done.version();
  std::string said = absl::StrCat(Id(version), done.already_there() ? " is there already" : "");
  if (version.promoted()) return absl::StrCat(said, ", which is latest");
  if (!delivery.promote) {
    return absl::StrCat(said, "; bucketctl costs promote ", Id(version), " makes it latest");
  }
  ASSIGN_OR_RETURN(const v1::PromoteProfileResponse promoted,
                   client.Promote(version.name(), version.version()));
  return absl::StrCat(said, ", which is latest now, was version ", promoted.before());
}

}  // namespace

absl::StatusOr<std::string> Deliver(const CostProfile& profile, const Delivery& delivery) {
  absl::StatusOr<std::string> said = Send(profile, delivery);
  if (!absl::IsDeadlineExceeded(said.status())) return said;
  return absl::UnavailableError(said.status().message());
}

}  // namespace bucketd::agent
