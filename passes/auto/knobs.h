// What the search may turn one by one, and to which values.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/auto/settings.h"

namespace bucketd::search {

struct Knob {
  int64_t (*get)(const Settings&);
  void (*set)(Settings&, int64_t);
  std::vector<int64_t> values;  // ascending
};

// In the order in which they are worth a look. In units of the profile: its longest alpha, its
// longest collective, and the compute of the step.
std::vector<Knob> KnobsOf(int64_t alpha_ps, int64_t longest_ps, int64_t span_ps);

}  // namespace bucketd::search
