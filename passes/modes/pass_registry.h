// Every pass and every mode, in one table each.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/auto/auto_pass.h"
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
  // The search of mode auto is told of this mode, starts from what it makes and is never worse.
  bool tried_by_auto = false;
};
absl::Span<const ModeInfo> AllModes();
// What the search of mode auto starts from: those modes, and mode overlap twice more, with gathers
// that start close to their use and without buckets.
std::vector<OtherMode> ModesToStartFrom();
// nullptr if there is none.
const ModeInfo* FindMode(absl::string_view name);

}  // namespace bucketd
