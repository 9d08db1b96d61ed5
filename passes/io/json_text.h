// Writing and reading small pieces of JSON. Internal to passes/io.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

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

inline absl::StatusOr<std::string> AsString(const nlohmann::json& value, absl::string_view where) {
  if (!value.is_string()) return WrongType(where, "a string", value);
  return value.get<std::string>();
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

}  // namespace bucketd::internal
