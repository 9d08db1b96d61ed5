// Untrusted text: what of it a graph may hold, and how a message shows it.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace bucketd {

// Position of the first byte that begins no well-formed UTF-8 sequence or begins a control
// character; npos if there is none.
size_t FindUnprintable(absl::string_view s);
// The same, but tabs and ends of lines are none: XML and tables have them.
size_t FindControl(absl::string_view s);
// Short, and escaped where it is not plain ASCII.
std::string Printable(absl::string_view s);

}  // namespace bucketd
