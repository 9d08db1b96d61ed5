// From samples to a candidate version: fits what is held of a profile to its promoted version and
// adds the outcome to the catalog. Reads and writes the store: never on a gRPC thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "passes/cost/measured_fit.h"
#include "server/config/cost_options.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_metrics.h"
#include "server/costs/cost_samples.h"

namespace bucketd {

struct CostProposal {
  ProfileFit fit;
  std::optional<ProfileInfo> version;  // none: nothing moved enough
  bool promoted = false;               // options.auto_promote, and nothing spoke against it
};

FitOptions FitOptionsOf(const CostOptions& options);

// NO_SAMPLES, PROFILE_UNKNOWN, PROFILE_UNREADABLE, STORE_UNAVAILABLE.
absl::StatusOr<CostProposal> ProposeProfile(const std::string& name, CostCatalog& catalog,
                                            CostSamples& samples, const CostOptions& options,
                                            CostMetrics& metrics, const Actor& actor = {});

}  // namespace bucketd
