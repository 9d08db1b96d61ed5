#include "passes/text/link_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::text_internal {
namespace {

// Stands where nothing remains for the wire.
constexpr double kInstant = 1e30;

bool Same(const StatedCosts::Link& a, const StatedCosts::Link& b) {
  return a.alpha_us == b.alpha_us && a.busbw_bytes_per_s == b.busbw_bytes_per_s;
}

std::string Decimal(double value) {
  std::array<char, 1100> digits{};
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed);
  return std::string(digits.data(), end.ptr);
}

// Whether value is a whole number of `unit`s, whose count then stands for it exactly.
bool IsWhole(double value, double unit) {
  return value >= unit && value < unit * 0x1p53 && std::fmod(value, unit) == 0.0;
}

}  // namespace

absl::StatusOr<StatedCosts::Link> ResolveLink(const LinkText& own, const LinkText& group,
                                              const Collective& c, int32_t group_size) {
  const double rounds = TraitsOf(c.kind).rounds;
  StatedCosts::Link link{own.alpha_us, own.busbw_bytes_per_s};
  if (link.alpha_us < 0 && group.alpha_us >= 0) link.alpha_us = rounds * group.alpha_us;
  if (own.cost_us < 0) {
    if (link.busbw_bytes_per_s < 0) link.busbw_bytes_per_s = group.busbw_bytes_per_s;
    if (link.alpha_us >= 0 && link.busbw_bytes_per_s > 0) return link;
    return absl::InvalidArgumentError(
        "this graph states costs, so expected cost=, or alpha= and busbw=, here or at its group");
  }
  if (own.busbw_bytes_per_s >= 0) {
    return absl::InvalidArgumentError("expected cost= or busbw=, not both");
  }
  if (link.alpha_us < 0) link.alpha_us = 0.0;
  const double wire_us = own.cost_us - link.alpha_us;
  if (wire_us < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cost=", TimeText(own.cost_us), " is less than its alpha, ", TimeText(link.alpha_us)));
  }
  const double crossing = WireFactor(c.kind, group_size) * static_cast<double>(c.bytes);
  if (crossing <= 0) link.alpha_us = own.cost_us;  // nothing crosses: all is latency
  link.busbw_bytes_per_s =
      crossing > 0 && wire_us > 0 ? std::min(crossing / wire_us * 1e6, kInstant) : kInstant;
  return link;
}

LinkText ShortestLink(const StatedCosts::Link& link, const LinkText& group, const Collective& c,
                      int32_t group_size) {
  const double crossing = WireFactor(c.kind, group_size) * static_cast<double>(c.bytes);
  const double cost_ps =
      std::nearbyint((link.alpha_us + crossing / link.busbw_bytes_per_s * 1e6) * 1e6);
  const double cost_us = cost_ps / 1e6;
  const LinkText candidates[] = {
      {},
      {kNotStated, kNotStated, cost_us},
      {link.alpha_us, kNotStated, cost_us},
      {link.alpha_us, kNotStated, kNotStated},
      {kNotStated, link.busbw_bytes_per_s, kNotStated},
  };
  for (const LinkText& text : candidates) {
    const auto resolved = ResolveLink(text, group, c, group_size);
    if (resolved.ok() && Same(*resolved, link)) return text;
  }
  return {link.alpha_us, link.busbw_bytes_per_s, kNotStated};
}

LinkText GroupLink(const StatedCosts::Link& link, const Collective& c, int32_t group_size) {
  const LinkText alone = ShortestLink(link, {}, c, group_size);
  if (alone.cost_us >= 0 && alone.alpha_us < 0) return {};
  const double rounds = TraitsOf(c.kind).rounds;
  return {link.alpha_us / rounds, link.busbw_bytes_per_s, kNotStated};
}

std::string TimeText(double us) {
  return IsWhole(us, 1e3) ? absl::StrCat(Decimal(us / 1e3), "ms") : absl::StrCat(Decimal(us), "us");
}

std::string RateText(double bytes_per_s) {
  return IsWhole(bytes_per_s, 1e9) ? absl::StrCat(Decimal(bytes_per_s / 1e9), "GB/s")
                                   : absl::StrCat(Decimal(bytes_per_s), "B/s");
}

}  // namespace bucketd::text_internal
