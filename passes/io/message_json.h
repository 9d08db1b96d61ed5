// Any protobuf message as JSON for people and scripts: fields by their proto names and in their
// order, numbers as numbers (protobuf's own mapping writes 64-bit ones as strings), enums by name,
// bytes as lower-case hex. Fields that are not set and have presence are left out; all others are
// there, at 0, "" or [], so that a reader need not know which defaults mean "absent".
#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace bucketd {

// Indented by two spaces, with a newline at the end. Bytes that are no UTF-8 become U+FFFD.
std::string MessageJson(const google::protobuf::Message& message);

}  // namespace bucketd
