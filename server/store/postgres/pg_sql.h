// Pieces that statements share.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "passes/base/digest.h"
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

// The first key behind all that start with `prefix`; none if there is no such key.
inline std::optional<std::string> EndOfPrefix(absl::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (end.empty()) return std::nullopt;
  end.back() = static_cast<char>(end.back() + 1);
  return end;
}

}  // namespace bucketd
