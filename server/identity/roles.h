// What a caller may do, and which call wants what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "server/base/metrics.h"

namespace bucketd {

enum class CallerRole {
  kPlan,     // ask for plans, upload graphs, meet other ranks
  kReport,   // report measured costs
  kPromote,  // import cost profiles and decide which counts
  kAdmin,    // bucketctl's commands for operators
  kPeer,     // another replica of this server
};
inline constexpr size_t kRoles = static_cast<size_t>(CallerRole::kPeer) + 1;
absl::string_view Name(CallerRole role);
std::optional<CallerRole> RoleNamed(absl::string_view name);

class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(std::initializer_list<CallerRole> roles) {
    for (const CallerRole role : roles) Add(role);
  }
  constexpr void Add(CallerRole role) { bits_ |= Bit(role); }
  constexpr bool Has(CallerRole role) const { return (bits_ & Bit(role)) != 0; }
  constexpr bool HasOneOf(RoleSet others) const { return (bits_ & others.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  // "plan, report"; "none".
  std::string InWords(absl::string_view between = ", ") const;

 private:
  static constexpr uint32_t Bit(CallerRole role) { return 1U << static_cast<uint32_t>(role); }
  uint32_t bits_ = 0;
};

struct MethodRule {
  Method method;
  RoleSet one_of;  // empty: whoever is known may call
  // Shows or changes what belongs to all tenants: a caller of one tenant may not.
  bool of_all_tenants = false;

  // What nobody does in passing: where callers have no names, their machine counts.
  bool for_operators() const {
    return one_of.HasOneOf({CallerRole::kAdmin, CallerRole::kPromote}) &&
           !one_of.HasOneOf({CallerRole::kPlan, CallerRole::kReport});
  }
};
const MethodRule& RuleOf(Method method);

}  // namespace bucketd
