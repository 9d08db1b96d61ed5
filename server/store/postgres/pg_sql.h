// Pieces that statements share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "passes/base/digest.h"
#include "server/store/audit.h"
#include "server/store/postgres/pg_connection.h"
#include "server/store/store.h"
#include "server/store/stored_value.h"

namespace bucketd {

inline absl::Status Damaged() {
  return absl::DataLossError("the value does not match its checksum");
}

inline bool IsWhole(absl::string_view key, absl::string_view value, absl::string_view checksum) {
  return checksum == AsBytes(ValueChecksum(key, value));
}

// Milliseconds since 1970: parameter `number`, or the engine's clock where that is NULL.
inline std::string NowSql(int number) {
  return absl::StrCat("COALESCE($", number,
                      ", CAST(EXTRACT(EPOCH FROM CURRENT_TIMESTAMP) * 1000 AS BIGINT))");
}

// What a line of the audit log says, as the parameters that follow those of `statement`.
PgStatement WithLine(PgStatement statement, const AuditEntry& entry, std::optional<int64_t> now);
// The INSERT of a line whose first parameter is `first`, once for each row of `from`; "" for
// `from`: once. `after`: another expression than the line's own.
std::string InsertLineSql(int first, absl::string_view from, absl::string_view after = "");
// The row of the plan says until when it is held by anybody, and whoever holds it or lets go
// changes that row: a DELETE that waits for one of them sees what it wrote. The second statement
// changes no row if there is no such plan.
void AddHold(const PlanHeld& hold, std::vector<PgStatement>& statements);
// Never given twice.
int64_t NewWriteId();

// The first key behind all that start with `prefix`; none if there is no such key.
inline std::optional<std::string> EndOfPrefix(absl::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (end.empty()) return std::nullopt;
  end.back() = static_cast<char>(end.back() + 1);
  return end;
}

}  // namespace bucketd
