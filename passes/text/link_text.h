// What a line says a collective takes, and what it leaves out. Internal to passes/text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/base/types.h"
#include "passes/cost/costs.h"
#include "passes/ir/graph.h"

namespace bucketd::text_internal {

inline constexpr double kNotStated = -1.0;

// Figures of a group or of a collective; each may be left out.
struct LinkText {
  double alpha_us = kNotStated, busbw_bytes_per_s = kNotStated;
  double cost_us = kNotStated;  // of a collective alone; only without busbw
  bool states_any() const { return alpha_us >= 0 || busbw_bytes_per_s >= 0 || cost_us >= 0; }
};

// A collective takes alpha + f * bytes / busbw. What its line does not state comes from its group,
// where an all-reduce, which makes two rounds, takes alpha twice. With a cost, busbw follows (and
// alpha is 0 where neither states it). INVALID_ARGUMENT, without a place, if that does not do.
absl::StatusOr<StatedCosts::Link> ResolveLink(const LinkText& own, const LinkText& group,
                                              const Collective& c, int32_t group_size);

// The least that gives exactly `link` again.
LinkText ShortestLink(const StatedCosts::Link& link, const LinkText& group, const Collective& c,
                      int32_t group_size);
// What a group of which `link` is the first one's states, if anything.
LinkText GroupLink(const StatedCosts::Link& link, const Collective& c, int32_t group_size);

// Shortest texts that read back as the same double: "45us", "1ms", "175GB/s".
std::string TimeText(double us);
std::string RateText(double bytes_per_s);

}  // namespace bucketd::text_internal
