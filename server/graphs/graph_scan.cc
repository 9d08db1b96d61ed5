#include "server/graphs/graph_scan.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

#include "proto/graph.pb.h"
#include "server/base/errors.h"

namespace bucketd {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// A real graph has some ten messages and strings and some thirty packed numbers a node; small
// graphs have a table of strings to carry.
constexpr int64_t kElementsPerNode = 32;
constexpr int64_t kPackedBytesPerNode = 64;
constexpr int64_t kFreeElements = 100'000;
constexpr int64_t kFreePackedBytes = 1'000'000;

struct Counts {
  int64_t nodes = 0;
  int64_t elements = 0;      // messages and strings inside
  int64_t packed_bytes = 0;  // of repeated numbers: no fewer than there are numbers
};

int Field(uint32_t tag) { return WireFormatLite::GetTagFieldNumber(tag); }
bool HasLength(uint32_t tag) {
  return WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
}

bool Skip(CodedInputStream& in, uint32_t tag) { return WireFormatLite::SkipField(&in, tag); }

// Skips a field of repeated numbers, packed or not.
bool SkipNumbers(CodedInputStream& in, uint32_t tag, Counts& counts) {
  const int before = in.CurrentPosition();
  if (!Skip(in, tag)) return false;
  counts.packed_bytes += in.CurrentPosition() - before;
  return true;
}

// Calls each(tag) for every field of the message that comes next; `each` consumes the field.
template <typename Each>
bool ForFields(CodedInputStream& in, const Each& each) {
  uint32_t length = 0;
  // PushLimit would quietly shorten a message that claims more than there is.
  if (!in.ReadVarint32(&length) || int64_t{length} > in.BytesUntilLimit()) return false;
  const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(length));
  while (const uint32_t tag = in.ReadTag()) {
    if (!each(tag)) return false;
  }
  if (!in.ConsumedEntireMessage() || in.BytesUntilLimit() != 0) return false;
  in.PopLimit(limit);
  return true;
}

bool ScanTensor(CodedInputStream& in, Counts& counts) {
  return ForFields(in, [&](uint32_t tag) {
    if (Field(tag) == v1::Tensor::kShapeFieldNumber) return SkipNumbers(in, tag, counts);
    return Skip(in, tag);
  });
}

bool ScanNode(CodedInputStream& in, Counts& counts) {
  return ForFields(in, [&](uint32_t tag) {
    switch (Field(tag)) {
      case v1::Node::kInputsFieldNumber:
      case v1::Node::kAliasOfFieldNumber:
      case v1::Node::kMutatesFieldNumber:
        return SkipNumbers(in, tag, counts);
      case v1::Node::kOutputsFieldNumber:
        ++counts.elements;
        return HasLength(tag) ? ScanTensor(in, counts) : Skip(in, tag);
      case v1::Node::kSlotsFieldNumber:
      case v1::Node::kCollectiveFieldNumber:
        ++counts.elements;
        return Skip(in, tag);
      default:
        return Skip(in, tag);
    }
  });
}

absl::Status Check(const Counts& counts, int64_t max_nodes) {
  if (counts.nodes > max_nodes) {
    return MakeError(Reason::kGraphTooLarge,
                     absl::StrCat("the graph has more than ", max_nodes, " nodes"),
                     {.limit = max_nodes, .actual = counts.nodes});
  }
  const int64_t max_elements = kFreeElements + kElementsPerNode * max_nodes;
  if (counts.elements > max_elements) {
    return MakeError(
        Reason::kGraphTooLarge,
        absl::StrCat("the graph has more than ", max_elements, " strings, tensors and slots"),
        {.limit = max_elements, .actual = counts.elements});
  }
  const int64_t max_packed = kFreePackedBytes + kPackedBytesPerNode * max_nodes;
  if (counts.packed_bytes > max_packed) {
    return MakeError(
        Reason::kGraphTooLarge,
        absl::StrCat("the graph has more than ", max_packed, " bytes of inputs and shapes"),
        {.limit = max_packed, .actual = counts.packed_bytes});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ScanGraph(absl::string_view serialized, int64_t max_nodes) {
  if (serialized.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return MakeError(Reason::kGraphTooLarge, "a serialised Graph has less than 2 GiB",
                     {.limit = std::numeric_limits<int>::max(),
                      .actual = static_cast<int64_t>(serialized.size())});
  }
  CodedInputStream in(reinterpret_cast<const uint8_t*>(serialized.data()),
                      static_cast<int>(serialized.size()));
  Counts counts;
  bool well_formed = true;
  while (well_formed) {
    const uint32_t tag = in.ReadTag();
    if (tag == 0) break;
    const int field = Field(tag);
    const bool counted = field == v1::Graph::kStringsFieldNumber ||
                         field == v1::Graph::kGroupsFieldNumber ||
                         field == v1::Graph::kNodeNamesFieldNumber;
    if (counted) ++counts.elements;
    if (field == v1::Graph::kNodesFieldNumber && HasLength(tag)) {
      ++counts.nodes;
      well_formed = ScanNode(in, counts);
    } else {
      well_formed = Skip(in, tag);
    }
    const absl::Status status = Check(counts, max_nodes);
    if (!status.ok()) return status;
  }
  if (!well_formed || !in.ConsumedEntireMessage()) {
    return MakeError(Reason::kGraphMalformed,
                     absl::StrCat("byte ", in.CurrentPosition(), " of ", serialized.size(),
                                  ": not a serialised Graph"));
  }
  return absl::OkStatus();
}

}  // namespace bucketd
