// What a plan of mode auto says of itself, beside the plan: it travels in its diagnostics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "passes/plan/plan.h"
#include "passes/sim/gap.h"
#include "passes/sim/sharp_bound.h"

namespace bucketd {

struct AutoReport {
  std::string best_mode;     // the best other mode within the memory limit; "none": program order
  int64_t best_mode_ps = 0;  // what its plan takes
  int64_t fastest_ps = 0;    // the fastest plan that was seen, whatever memory it takes
};

// Code "auto-report"; the text is for ReportOf().
Diagnostic ToDiagnostic(const AutoReport& report);
// Of a plan from anywhere: nothing if it has none, or one that cannot be.
std::optional<AutoReport> ReportOf(const Plan& plan);

// "0.310 % (12.345 us) above the bound of 4000.000 us: wire 8.000 us, head 4.345 us".
std::string GapText(const Gap& gap, const SharpBound& bound);

}  // namespace bucketd
