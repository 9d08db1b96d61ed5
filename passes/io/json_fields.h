// Which fields an object may have. Internal to passes/io.
#pragma once

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

#include "passes/io/json_text.h"

namespace bucketd::internal {

// An object with no other fields than these: a misspelt one would silently mean its default.
inline absl::Status CheckObject(const nlohmann::json& value, absl::string_view where,
                                const std::vector<absl::string_view>& known) {
  if (!value.is_object()) return WrongType(where, "an object", value);
  for (const auto& [key, unused] : value.items()) {
    if (absl::c_linear_search(known, key)) continue;
    return absl::InvalidArgumentError(absl::StrCat(where, ": unknown field ", Quoted(key),
                                                   "; known: ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace bucketd::internal
