// How two cost profiles differ: number by number, class by class of links, and in their measured
// kernels.
#pragma once

#include <string>

#include "passes/cost/profile.h"

namespace bucketd::ctl {

std::string DiffText(const CostProfile& a, const CostProfile& b);
// One object: "equal", "numbers": [{"name", "a", "b"}], "links": [{"class", "alpha_us_a", ...}],
// "kernels": [{"signature", "op", "us_a", "us_b"}], null where one has not measured it.
std::string DiffJson(const CostProfile& a, const CostProfile& b);

// Class, latency and bandwidth of every measured row, with what it rests on.
std::string LinksText(const CostProfile& profile);

}  // namespace bucketd::ctl
