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

Json ValueOf(const Message& m, const FieldDescriptor& field) {
  const Reflection& r = *m.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetInt32(m, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetInt64(m, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetUInt32(m, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetUInt64(m, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r.GetDouble(m, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r.GetFloat(m, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(m, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return r.GetEnum(m, &field)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return TextOf(field, r.GetString(m, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ObjectOf(r.GetMessage(m, &field));
  }
  return nullptr;
}

Json ElementOf(const Message& m, const FieldDescriptor& field, int i) {
  const Reflection& r = *m.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetRepeatedInt32(m, &field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetRepeatedInt64(m, &field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetRepeatedUInt32(m, &field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetRepeatedUInt64(m, &field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r.GetRepeatedDouble(m, &field, i);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r.GetRepeatedFloat(m, &field, i);
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetRepeatedBool(m, &field, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return r.GetRepeatedEnum(m, &field, i)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return TextOf(field, r.GetRepeatedString(m, &field, i));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ObjectOf(r.GetRepeatedMessage(m, &field, i));
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
      for (int k = 0; k < size; ++k) list.push_back(ElementOf(message, field, k));
      object[field.name()] = std::move(list);
    } else if (!field.has_presence() || message.GetReflection()->HasField(message, &field)) {
      object[field.name()] = ValueOf(message, field);
    }
  }
  return object;
}

}  // namespace

std::string MessageJson(const Message& message) {
  return ObjectOf(message).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bucketd
