#include "server/jobs/machine/job_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/errors.h"
#include "server/base/names.h"

namespace bucketd {
namespace {

absl::Status Invalid(absl::string_view message, const ErrorFields& fields = {}) {
  return MakeError(Reason::kJobInvalid, message, fields);
}

absl::Status CheckRanks(absl::Span<const uint32_t> ascending, uint32_t size) {
  if (ascending.empty()) return Invalid("job.rank: the call speaks for no rank");
  if (ascending.back() >= size) {
    return Invalid(absl::StrCat("job.rank: ", ascending.back(), " of a scope of ", size,
                                " ranks; expected 0 to ", size - 1),
                   {.limit = size - 1, .actual = ascending.back()});
  }
  const auto twice = std::adjacent_find(ascending.begin(), ascending.end());
  if (twice == ascending.end()) return absl::OkStatus();
  return Invalid(absl::StrCat("job.rank: ", *twice, " is there twice"));
}

}  // namespace

absl::StatusOr<JobCall> ReadJob(absl::string_view tenant, const v1::Job& job) {
  RETURN_IF_ERROR(CheckJobName("job.id", job.id()));
  RETURN_IF_ERROR(CheckJobName("job.scope", job.scope()));
  if (job.size() == 0 || job.size() > kMaxRanksOfScope) {
    return Invalid(
        absl::StrCat("job.size: ", job.size(), " ranks; expected 1 to ", kMaxRanksOfScope),
        {.limit = kMaxRanksOfScope, .actual = job.size()});
  }
  JobCall call{.tenant = std::string(tenant),
               .id = job.id(),
               .generation = job.generation(),
               .scope = job.scope(),
               .ranks = {job.rank().begin(), job.rank().end()},
               .size = job.size(),
               .fresh = job.fresh()};
  std::sort(call.ranks.begin(), call.ranks.end());
  RETURN_IF_ERROR(CheckRanks(call.ranks, call.size));
  return call;
}

}  // namespace bucketd
