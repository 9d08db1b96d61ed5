// Layers of a model, for scheduling by their dense parts: those without all-to-alls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/pass/pass.h"

namespace bucketd {

struct DenseLayers {
  static constexpr int32_t kNone = -1;  // neither in a layer nor behind the last one

  std::vector<std::string> names;    // FQNs; rows of them by first use, in each by number
  std::vector<int32_t> of_unit;      // index into names; top(): used behind the last layer
  std::vector<std::string> on_top;   // modules of units of top()
  std::vector<std::string> experts;  // children of layers with the routed experts
  int32_t top() const { return static_cast<int32_t>(names.size()); }
};

// A layer is what a parameter's FQN says up to its first number; if some module has two or more
// such children, others with one do not count. Its routed experts are in those of its children
// whose parameters are on another group than most of the layer's, or else in those that hold
// all-to-alls. FAILED_PRECONDITION if a unit has parameters of two layers. REQUIRES: units and tags
// in the context. O(nodes + names).
absl::StatusOr<DenseLayers> FindDenseLayers(const PassContext& context);

// `layer` with the next component of `path` behind it; "" if path lies not inside of it.
absl::string_view ChildOf(absl::string_view layer, absl::string_view path);

}  // namespace bucketd
