// A look at a serialised Graph before it is parsed. Parsing turns two bytes of an empty message
// into a hundred bytes of memory; what is too large is refused here, for the price of one walk.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bucketd {

// GRAPH_TOO_LARGE: more nodes than `max_nodes`, or out of all proportion more of anything else that
// takes memory. GRAPH_MALFORMED: not in protobuf's wire format.
absl::Status ScanGraph(absl::string_view serialized, int64_t max_nodes);

}  // namespace bucketd
