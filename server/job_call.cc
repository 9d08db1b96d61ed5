#include "server/job_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/errors.h"

namespace bucketd {
namespace {

constexpr size_t kMaxRuns = 12;  // of ranks in one message

absl::Status Invalid(absl::string_view message, const ErrorFields& fields = {}) {
  return MakeError(Reason::kJobInvalid, message, fields);
}

absl::Status CheckRanks(absl::Span<const uint32_t> ascending, uint32_t size) {
  if (ascending.empty()) return Invalid("job.rank: the call speaks for no rank");
  if (ascending.back() >= size) {
    return Invalid(absl::StrCat("job.rank: ", ascending.back(), " of a scope of ", size,
                                " ranks; expected 0 to ", size - 1),
                   {.limit = size - 1, .actual = ascending.back(), .node = {}});
  }
  const auto twice = std::adjacent_find(ascending.begin(), ascending.end());
  if (twice == ascending.end()) return absl::OkStatus();
  return Invalid(absl::StrCat("job.rank: ", *twice, " is there twice"));
}

}  // namespace

absl::Status CheckJobName(absl::string_view field, absl::string_view name) {
  const bool printable = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isprint(static_cast<uint8_t>(c));
  });
  if (!name.empty() && name.size() <= kMaxJobNameBytes && printable) return absl::OkStatus();
  return Invalid(absl::StrCat(field, ": expected 1 to ", kMaxJobNameBytes,
                              " printable ASCII characters, got ", name.size(), " bytes"),
                 {.limit = static_cast<int64_t>(kMaxJobNameBytes),
                  .actual = static_cast<int64_t>(name.size()),
                  .node = {}});
}

absl::StatusOr<JobCall> ReadJob(absl::string_view tenant, const v1::Job& job) {
  RETURN_IF_ERROR(CheckJobName("job.id", job.id()));
  RETURN_IF_ERROR(CheckJobName("job.scope", job.scope()));
  if (job.size() == 0 || job.size() > kMaxRanksOfScope) {
    return Invalid(
        absl::StrCat("job.size: ", job.size(), " ranks; expected 1 to ", kMaxRanksOfScope),
        {.limit = kMaxRanksOfScope, .actual = job.size(), .node = {}});
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

std::string NameRanks(absl::Span<const uint32_t> ascending) {
  std::vector<std::string> runs;
  size_t named = 0;
  while (named < ascending.size() && runs.size() < kMaxRuns) {
    size_t last = named;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    // Two neighbours read better as two.
    const absl::string_view between = last == named + 1 ? ", " : "-";
    runs.push_back(last == named ? absl::StrCat(ascending[named])
                                 : absl::StrCat(ascending[named], between, ascending[last]));
    named = last + 1;
  }
  const absl::string_view noun = ascending.size() == 1 ? "rank " : "ranks ";
  if (named < ascending.size()) {
    return absl::StrCat(noun, absl::StrJoin(runs, ", "), " and ", ascending.size() - named,
                        " more");
  }
  const std::string last = std::move(runs.back());
  runs.pop_back();
  return runs.empty() ? absl::StrCat(noun, last)
                      : absl::StrCat(noun, absl::StrJoin(runs, ", "), " and ", last);
}

}  // namespace bucketd
