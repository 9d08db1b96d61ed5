#include "passes/io/message_json.h"

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"

namespace bucketd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

Json ObjectOf(const Message& message);

Json TextOf(const FieldDescriptor& field, const std::string& value) {
  return field.type() == FieldDescriptor::TYPE_BYTES ? absl::BytesToHexString(value) : value;
}

// Of a field, or of element `i` of a list.
Json ValueOf(const Message& m, const FieldDescriptor& field, int i) {
  const Reflection& r = *m.GetReflection();
  const auto get = [&](auto one, auto element) {
    return field.is_repeated() ? (r.*element)(m, &field, i) : (r.*one)(m, &field);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return TextOf(field, get(&Reflection::GetString, &Reflection::GetRepeatedString));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ObjectOf(field.is_repeated() ? r.GetRepeatedMessage(m, &field, i)
                                          : r.GetMessage(m, &field));
  }
  return nullptr;
}

Json ObjectOf(const Message& message) {
  Json object = Json::object();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_repeated()) {
      Json list = Json::array();
      const int size = message.GetReflection()->FieldSize(message, &field);
      for (int k = 0; k < size; ++k) list.push_back(ValueOf(message, field, k));
      object[field.name()] = std::move(list);
    } else if (!field.has_presence() || message.GetReflection()->HasField(message, &field)) {
      object[field.name()] = ValueOf(message, field, 0);
    }
  }
  return object;
}

}  // namespace

std::string MessageJson(const Message& message) {
  return ObjectOf(message).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bucketd
