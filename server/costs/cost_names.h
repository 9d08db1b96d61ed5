// How cost profiles are called.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "passes/cost/profile.h"

namespace bucketd {

// "name@version": what plans, keys and pins call it.
std::string ProfileId(const CostProfile& profile);

struct ProfileSpec {
  std::string name;
  bool latest = false;
  std::string version_text;  // "" unless the text has an '@'
  int32_t version = 0;       // 0: none, or no version could be that
};

// "NAME", "NAME@VERSION", "NAME@latest", "latest" and "" as CostCatalog::Resolve has them. Never
// fails: what makes no sense names nothing that there is.
ProfileSpec ParseProfileSpec(absl::string_view spec, absl::string_view device_type);

// 1 to 64 of a-z, 0-9, '_', '-' and '.', the first a letter or digit; not "latest".
// PROFILE_INVALID.
absl::Status CheckProfileName(absl::string_view name);
// Lengths of what is for people. PROFILE_INVALID.
absl::Status CheckProfileTexts(const CostProfile& profile, absl::string_view by);

}  // namespace bucketd
