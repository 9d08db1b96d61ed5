// Writing small pieces of JSON, and reading objects field by field. Internal to passes/io.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

#include "passes/base/status_macros.h"

namespace bucketd::internal {

// "text" with its quotes; bytes that are no UTF-8 become U+FFFD.
inline std::string Quoted(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

inline absl::Status WrongType(absl::string_view where, absl::string_view expected,
                              const nlohmann::json& is) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": expected ", expected, ", is ", is.type_name()));
}

// The member of an object, or nullptr if there is none.
inline const nlohmann::json* Find(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

inline absl::StatusOr<int64_t> AsInteger(const nlohmann::json& value, absl::string_view where,
                                         int64_t low, int64_t high) {
  if (!value.is_number_integer()) return WrongType(where, "an integer", value);
  const bool beyond = value.is_number_unsigned() &&
                      value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  const int64_t number = beyond ? std::numeric_limits<int64_t>::max() : value.get<int64_t>();
  if (beyond || number < low || number > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": is ", value.dump(), ", expected ", low, " to ", high));
  }
  return number;
}

// Parses an object. Errors say where in the text.
inline absl::StatusOr<nlohmann::json> ParseObject(absl::string_view text, absl::string_view what) {
  try {
    nlohmann::json value = nlohmann::json::parse(text.begin(), text.end());
    if (!value.is_object()) return WrongType(what, "an object", value);
    return value;
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": not JSON: ", e.what()));
  }
}

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

// Reads the members of one object, which outlives it; `where` names that, "" a whole document. A
// member that is not there leaves the value as it is, and is an error where it is needed.
class Members {
 public:
  Members(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  // nullptr if there is none.
  const nlohmann::json* Find(const char* name) const { return internal::Find(object_, name); }
  std::string Place(const char* name) const {
    return absl::StrCat(where_, where_.empty() ? "" : ".", name);
  }

  absl::Status Text(const char* name, bool needed, std::string& value) const {
    const nlohmann::json* member = Find(name);
    if (member == nullptr) return Lacks(name, needed);
    if (!member->is_string()) return WrongType(Place(name), "a string", *member);
    value = member->get<std::string>();
    return absl::OkStatus();
  }

  template <typename Int>
  absl::Status Integer(const char* name, bool needed, Int& value, int64_t low = 0,
                       int64_t high = std::numeric_limits<Int>::max()) const {
    const nlohmann::json* member = Find(name);
    if (member == nullptr) return Lacks(name, needed);
    ASSIGN_OR_RETURN(const int64_t number, AsInteger(*member, Place(name), low, high));
    value = static_cast<Int>(number);
    return absl::OkStatus();
  }

  absl::Status Number(const char* name, bool needed, double& value) const {
    const nlohmann::json* member = Find(name);
    if (member == nullptr) return Lacks(name, needed);
    if (!member->is_number()) return WrongType(Place(name), "a number", *member);
    value = member->get<double>();
    return absl::OkStatus();
  }

 private:
  absl::Status Lacks(const char* name, bool needed) const {
    if (!needed) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Place(name), ": missing"));
  }

  const nlohmann::json& object_;
  const std::string where_;
};

}  // namespace bucketd::internal
