// JSON values that programs print: members in the order in which they are given, one layout for
// all. nlohmann's library is behind it, in json.cc alone.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace bucketd {

class Json {
 public:
  struct Member;

  // null.
  Json();
  // Text; bytes that are no UTF-8 become U+FFFD.
  Json(absl::string_view text);  // NOLINT(google-explicit-constructor)
  Json(const std::string& text) : Json(absl::string_view(text)) {}  // NOLINT
  Json(const char* text) : Json(absl::string_view(text)) {}         // NOLINT
  Json(bool value);                                                 // NOLINT
  Json(double value);                                               // NOLINT
  template <typename T,
            std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  Json(T value) : Json(Integer{static_cast<int64_t>(value)}) {}  // NOLINT

  Json(const Json& other);
  Json& operator=(const Json& other);
  Json(Json&&) noexcept;
  Json& operator=(Json&&) noexcept;
  ~Json();

  // Picoseconds as microseconds; exact below 10^15.
  static Json Us(int64_t ps);
  // A number as it is spelled: where fewer digits than a double's are meant.
  static Json Number(const std::string& spelled);
  static Json Object(std::initializer_list<Member> members);
  // What `make` makes of each item.
  template <typename Items, typename Make>
  static Json List(const Items& items, const Make& make) {
    Json list = EmptyList();
    for (const auto& item : items) list.Add(make(item));
    return list;
  }
  template <typename Items>
  static Json List(const Items& items) {
    return List(items, [](const auto& item) { return Json(item); });
  }

  // REQUIRES: an object, and a key that it does not have yet.
  Json& Set(absl::string_view key, Json value);
  // All members of another object. REQUIRES: both are objects.
  Json& Merge(const Json& other);
  // REQUIRES: a list.
  void Add(Json value);

  // One line a member of the outermost object, and one line an entry of its lists of objects.
  std::string Text() const;

 private:
  struct Integer {
    int64_t value;
  };
  explicit Json(Integer integer);
  static Json EmptyList();

  std::unique_ptr<nlohmann::ordered_json> value_;
};

struct Json::Member {
  absl::string_view key;
  Json value;
};

}  // namespace bucketd
