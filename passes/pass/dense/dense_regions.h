// Layers of a model, for scheduling by their dense parts: those without all-to-alls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

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

// Where the launches of layer i start, i counting layers of `DenseLayers`, N of them: all-gathers
// of the forward before the dense part of layer i - 1, of the backward before that of layer i + 1
// (of the last layer: before what lies behind it), reduce-scatters in the dense part of layer i - 1
// in the backward; what lies behind the last layer counts as layer N. Launches without such a layer
// stay. A dense part is the layer's kernels; with routed experts those of the forward before them
// and of the backward behind them. In a dense part a launch stands before the first kernel behind
// all that it is computed from; casts of parameters come along where they stand later. Waits for
// reduce-scatters stand at the end, with what only they lead to.
//
// Says in diagnostics what did not move, and why; under strict, FAILED_PRECONDITION if a launch has
// no place in a part that is not empty, or one of layer N in an empty one. Where memory would
// exceed its limit, the pass "dense-regions" takes `kept_waits`, or else leaves the plan as it is.
struct DenseMoves {
  std::vector<Step> order;       // with the waits at the end
  std::vector<Step> kept_waits;  // with the waits where they were
  std::vector<Diagnostic> skipped;
};
absl::StatusOr<DenseMoves> MoveToDenseRegions(const PassContext& context, const DenseLayers& layers,
                                              const Plan& plan);

}  // namespace bucketd
