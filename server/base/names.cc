#include "server/base/names.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "server/base/errors.h"

namespace bucketd {
namespace {

constexpr size_t kMaxRuns = 12;  // of ranks in one message

}  // namespace

absl::Status CheckTenant(absl::string_view tenant) {
  if (tenant.size() <= kMaxTenantBytes && std::all_of(tenant.begin(), tenant.end(), [](char c) {
        return absl::ascii_isgraph(static_cast<unsigned char>(c));
      })) {
    return absl::OkStatus();
  }
  return MakeError(Reason::kRequestMalformed,
                   absl::StrCat("tenant: expected up to ", kMaxTenantBytes,
                                " printable ASCII characters without spaces"));
}

absl::Status CheckJobName(absl::string_view field, absl::string_view name) {
  const bool printable = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isprint(static_cast<uint8_t>(c));
  });
  if (!name.empty() && name.size() <= kMaxJobNameBytes && printable) return absl::OkStatus();
  return MakeError(Reason::kJobInvalid,
                   absl::StrCat(field, ": expected 1 to ", kMaxJobNameBytes,
                                " printable ASCII characters, got ", name.size(), " bytes"),
                   {.limit = static_cast<int64_t>(kMaxJobNameBytes),
                    .actual = static_cast<int64_t>(name.size())});
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
