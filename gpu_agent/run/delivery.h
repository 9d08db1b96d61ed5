// A calibration handed to the planner.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/client_tls.h"

#include "passes/cost/profile.h"

namespace bucketd::agent {

struct Delivery {
  std::string planner;  // "host:port" or "unix:/path"
  client::ClientTls tls;
  bool promote = false;  // make it what NAME@latest means; the first of its name always is
};

// As a new version of the profile's name; one with the same numbers is not made twice. The planner
// plans with it where a job names it, and with NAME@latest once it is promoted; running jobs keep
// theirs. What came of it, for people: "calibrated@2, which is latest". UNAVAILABLE where nobody
// answers in time, else the planner's refusal.
absl::StatusOr<std::string> Deliver(const CostProfile& profile, const Delivery& delivery);

}  // namespace bucketd::agent
