// Finds a model's transformer blocks in the names of its parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/types.h"

namespace bucketd {

// A parameter (or module) by its FQN, when the forward first uses it, and its tagged collectives.
struct LabelUse {
  absl::string_view label;
  int64_t first_use = 0;                  // any numbers that grow with time will do
  std::vector<CollectiveId> collectives;  // ascending
};

struct FoundUnit {
  std::string name;
  std::vector<int32_t> uses;  // indices into the list that was given
  bool lone_block = false;    // taken for a block although its parent has no other child
};

// Blocks are the children P.0, P.1, ... of a prefix P that has two or more of them, lies in no
// other one's child, and whose children fall into at most two classes by their own parameter
// names (dense and mixture of experts). Units: what is used before the first block, by top-level
// module; each block in numeric order; what lies between two rows of blocks; all that comes after
// the last block as one. Within each of these, in order of first use.
// Where no prefix has two such children, as when blocks are compiled one by one, a prefix with a
// single one will do. FAILED_PRECONDITION if there are no blocks; the text offers mode manual.
// `uses` holds distinct names.
absl::StatusOr<std::vector<FoundUnit>> FindBlocks(absl::Span<const LabelUse> uses);

}  // namespace bucketd
