// The vocabulary that every layer shares. Enum values are those of proto/graph.proto and part of
// the canonical encoding: never change an existing one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace bucketd {

// Position of a node in program order. Dense, from 0.
using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

using CollectiveId = int32_t;  // dense, in node order; -1: none
using BucketId = int32_t;      // dense, in plan order; -1: none
using GroupId = int32_t;       // index into Graph::groups()
using StringId = int32_t;      // index into the graph's string table; 0 is ""

enum class DType : uint8_t {
  kUnspecified = 0,
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kU32,
  kU64,
  kC64,
  kC128,
};
enum class NodeKind : uint8_t {
  kUnspecified = 0,
  kPlaceholder,
  kGetAttr,
  kCall,
  kGetitem,
  kCollective,
  kWait,
  kOutput,
};
enum class CollectiveKind : uint8_t {
  kUnspecified = 0,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
};
enum class ReduceOp : uint8_t { kNone = 0, kSum, kAvg, kMin, kMax, kProduct, kBand, kBor, kBxor };
enum class Role : uint8_t { kNone = 0, kParameter, kBuffer, kInput, kTangent, kSaved };
enum class SlotKind : uint8_t { kNone = 0, kOutput, kParameterGradient, kInputGradient, kSaved };
enum class Direction : uint8_t { kNone = 0, kForward, kBackward };
enum class Tag : uint8_t {
  kNone = 0,
  kFsdpAllGather,
  kFsdpReduceScatter,
  kDdpAllReduce,
  kHsdpAllReduce
};

enum class BucketMode : uint8_t { kPacked = 1, kGrouped = 2 };
enum class CopyStream : uint8_t { kCompute = 1, kComm = 2 };
enum class Numerics : uint8_t { kEagerOrder = 1, kExact = 2, kFree = 3 };
// Whose bits sums over ranks have: eager training's, the unplanned graph's, both's, neither's.
enum class Bits : uint8_t { kUnsaid = 0, kNeither, kEager, kUnplanned, kBoth };

// Bytes of one element. Zero for kUnspecified.
int64_t ItemSize(DType dtype);

// Names as in text, JSON and tables: "bf16", "all_gather", "sum", ...; "?" of what is no value.
absl::string_view Name(DType dtype);
absl::string_view Name(NodeKind kind);
absl::string_view Name(CollectiveKind kind);
absl::string_view Name(ReduceOp op);
absl::string_view Name(Role role);
absl::string_view Name(SlotKind kind);
absl::string_view Name(Direction direction);
absl::string_view Name(Tag tag);
absl::string_view Name(BucketMode mode);
absl::string_view Name(CopyStream stream);
absl::string_view Name(Numerics numerics);
absl::string_view Name(Bits bits);
// "ag", "rs", "ar", "a2a", "bc": as graph files and the referee say it.
absl::string_view ShortName(CollectiveKind kind);
// Of all values of one of these enums but "unspecified", in order.
template <typename Enum>
std::vector<absl::string_view> NamesOf() {
  std::vector<absl::string_view> names;
  for (int i = 0; Name(static_cast<Enum>(i)) != "?"; ++i) {
    if (Name(static_cast<Enum>(i)) != "unspecified") names.push_back(Name(static_cast<Enum>(i)));
  }
  return names;
}
// False if none of those is the name; `value` then stays.
template <typename Enum>
bool FromName(absl::string_view name, Enum& value) {
  for (int i = 0; Name(static_cast<Enum>(i)) != "?"; ++i) {
    if (Name(static_cast<Enum>(i)) != name || name == "unspecified") continue;
    value = static_cast<Enum>(i);
    return true;
  }
  return false;
}

}  // namespace bucketd
