#include "client/cli/json.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace bucketd {
namespace {

using Value = nlohmann::ordered_json;

std::string Scalar(const Value& value) {
  return value.dump(-1, ' ', false, Value::error_handler_t::replace);
}

void Print(const Value& value, int depth, std::string& out) {
  const bool rows = depth == 1 && std::any_of(value.begin(), value.end(), [](const Value& entry) {
                      return entry.is_structured();
                    });
  absl::string_view separator;
  if (value.is_object()) {
    out += '{';
    for (const auto& [key, member] : value.items()) {
      absl::StrAppend(&out, separator, Scalar(key), ": ");
      Print(member, depth + 1, out);
      separator = depth == 0 ? ",\n " : ", ";
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (const Value& entry : value) {
      out.append(separator.data(), separator.size());
      Print(entry, depth + 1, out);
      separator = rows ? ",\n  " : ", ";
    }
    out += ']';
  } else {
    out += Scalar(value);
  }
}

}  // namespace

Json::Json() : value_(std::make_unique<Value>()) {}
Json::Json(absl::string_view text) : value_(std::make_unique<Value>(std::string(text))) {}
Json::Json(bool value) : value_(std::make_unique<Value>(value)) {}
Json::Json(double value) : value_(std::make_unique<Value>(value)) {}
Json::Json(Integer integer) : value_(std::make_unique<Value>(integer.value)) {}
Json::Json(const Json& other) : value_(std::make_unique<Value>(*other.value_)) {}
Json& Json::operator=(const Json& other) {
  *value_ = *other.value_;
  return *this;
}
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

Json Json::Us(int64_t ps) { return Json(static_cast<double>(ps) / 1e6); }

Json Json::Number(const std::string& spelled) {
  Json number;
  *number.value_ = Value::parse(spelled);
  return number;
}

Json Json::Object(std::initializer_list<Member> members) {
  Json object;
  *object.value_ = Value::object();
  for (const Member& member : members) object.Set(member.key, member.value);
  return object;
}

Json Json::EmptyList() {
  Json list;
  *list.value_ = Value::array();
  return list;
}

Json& Json::Set(absl::string_view key, Json value) {
  (*value_)[std::string(key)] = *std::move(value.value_);
  return *this;
}

Json& Json::Merge(const Json& other) {
  for (const auto& [key, value] : other.value_->items()) (*value_)[key] = value;
  return *this;
}

void Json::Add(Json value) { value_->push_back(*std::move(value.value_)); }

std::string Json::Text() const {
  std::string text;
  Print(*value_, 0, text);
  return text + "\n";
}

}  // namespace bucketd
