// Which lines of the audit log go when it has too many. Engines say what there is and take away
// what this names, so that the rule is one.
//
// What calls cause and what operators do are two logs in one table, each with a bound of its own:
// whoever may ask for plans can cause as many lines as it likes, and must not push out who switched
// planning off. Within each the tenants share the bound: what one leaves is the others', and
// whoever has more than its share loses its oldest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bucketd {

// Whether a call that wants no more than the role plan or report writes such lines, or the server
// because of one. What operators do never has such a word.
bool IsCausedByCalls(absl::string_view what);

struct AuditCount {
  std::string tenant, what;
  int64_t lines = 0;
};

struct AuditLineAt {
  int64_t number = 0;
  std::string tenant, what;
};

// Which of these lines stay. Servers that trim one table at the same time agree on them, since the
// newest are counted, which no other server takes away.
class AuditShares {
 public:
  // `lines`: the bound of each of both.
  AuditShares(absl::Span<const AuditCount> counts, int64_t lines);
  // Whether either is beyond its bound by more than a sixteenth: a few lines are not worth a look
  // at all of them.
  bool beyond() const { return beyond_; }
  // Asked of each line, the newest first.
  bool Keeps(absl::string_view tenant, absl::string_view what);

 private:
  struct Log {
    int64_t share = 0;  // of each tenant
    int64_t left = 0;   // of all of them
    std::map<std::string, int64_t, std::less<>> kept;
  };
  std::array<Log, 2> logs_;  // what operators do; what calls cause
  bool beyond_ = false;
};

struct AuditTable {
  std::function<absl::StatusOr<std::vector<AuditCount>>()> count;
  // Those with smaller numbers, descending; empty: there is none.
  std::function<absl::StatusOr<std::vector<AuditLineAt>>(int64_t before, int32_t limit)> list;
  std::function<absl::Status(const std::vector<int64_t>& numbers)> erase;
};

// No call of `table` is about more lines than a page, but for `count`.
inline constexpr int32_t kAuditPage = 1000;
absl::Status TrimAuditTable(const AuditTable& table, int64_t lines);

}  // namespace bucketd
