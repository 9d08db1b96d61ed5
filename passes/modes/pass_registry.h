// Every pass and every mode, in one table each.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/pass/pass.h"
#include "passes/pass/pipeline.h"

namespace bucketd {

struct PassInfo {
  absl::string_view name, summary;
  std::unique_ptr<Pass> (*make)();
};
absl::Span<const PassInfo> AllPasses();
// NOT_FOUND lists the known ones.
absl::StatusOr<std::unique_ptr<Pass>> MakePass(absl::string_view name);
// Runs them in this order. NOT_FOUND: a name is unknown.
absl::StatusOr<Pipeline> MakePipeline(absl::Span<const absl::string_view> passes);

// A way to plan: passes in the order in which they run.
struct ModeInfo {
  absl::string_view name, summary;
  absl::Span<const absl::string_view> passes;
  // The planner searches behind the first of these (passes/auto, which stands above this table
  // since it tries the other modes).
  bool search = false;
};
absl::Span<const ModeInfo> AllModes();
// nullptr if there is none.
const ModeInfo* FindMode(absl::string_view name);

}  // namespace bucketd
