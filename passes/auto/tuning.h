// Everything about the search that was chosen and not derived, in one place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

#include "passes/auto/settings.h"

namespace bucketd::search {

// Searches that can be left out.
enum class Part : uint8_t {
  kOtherPlan,  // starts from the best other mode's buckets, too
  kBetween,    // and from one bucket for what is needed between two collectives on the path
  kBuckets,    // buckets shift, merge, split and change their form, one after the other
  kOrders,     // orders are changed action by action
  kLooser,     // cycles of that which come upon what is known make the next ones looser
  kFastWires,  // orders for wires that are faster
  kSlowWires,  // and slower; small steps
  kSturdier,   // around the best plan for one that fares better under perturbed costs
};
inline constexpr const char* kPartNames[] = {"other plan", "between",       "buckets",
                                             "orders",     "looser cycles", "fast wires",
                                             "slow wires", "sturdier"};

// --- Work. A leader placed by a decode is the unit; budgets are those of effort 5.

// Decodes of a graph: small ones are cheap, large ones get a few in any case.
inline constexpr int64_t kLeastDecodes = 40, kMostDecodes = 1400;
// So few leaders that hundreds of decodes are cheap: knobs are swept whole, orders changed action
// by action.
inline constexpr int32_t kSmallLeaders = 2500;
// Around the fastest plan for a sturdier one: leaders squared, since errors cancel out where there
// are many; less than the least is none.
inline constexpr int64_t kSturdierWork = 1'000'000'000, kMostSturdier = 1000, kLeastSturdier = 8;
// To replay an order takes so much less than to decode it.
inline constexpr int64_t kReplaysOfADecode = 4;

// --- Decodes of a candidate that is over the limit: in all, and those that leave memory free only
// where it overflowed, before the cap goes down everywhere.
inline constexpr int kMaxDecodes = 4, kLocalRepairs = 2;
// Rounds over all knobs, and over all buckets: bounds.
inline constexpr int kKnobRounds = 3, kBucketRounds = 20;
// Thousandths of the best time: a start that takes more is given up on the way.
inline constexpr int32_t kHopeless = 1600;
// Orders that were the best for a while and may be sturdier than what came after them.
inline constexpr size_t kMostFound = 12;

// --- Orders, action by action: changes before it returns to the best order. In every second such
// cycle only orders that are no slower are kept; the others begin by keeping those that are so many
// thousandths slower than the best, and get stricter.
inline constexpr int64_t kCycle = 160;
inline constexpr int32_t kLoose[] = {0, 4, 0, 16, 0, 50};
// Small steps: a cycle that knew most of what it came upon makes those behind it looser by so many
// thousandths, and lets them change more at once, until something better is found.
inline constexpr int32_t kLooser = 50;
inline constexpr size_t kMostLooser = 6, kMostMoreChanges = 3;

// --- Sturdier plans. Costs that are off by 30 % are seldom further off than this: what a byte
// takes on faster wires, and on slower ones. And the share of the limit in thousandths, since
// buffers live longer on slower wires than those that an order was made for.
inline constexpr double kFasterWires = 0.75, kSlowerWires = 1.33;
inline constexpr int32_t kOtherWiresMemory = 988;
// Nominal costs count as one perturbed case for so many of them: else the least mean of a few cases
// wins by hundredths of a percent, which is chance, and costs more than that where costs are right.
inline constexpr int kCasesOfNominal = 4;

// --- Uses: a reduction with more leaders below it is no sink, a gather with more above it no root.
inline constexpr int32_t kMaxBelow = 24, kMaxAbove = 64;
// Thousandths of a gather's time on the wire that are planned for: reductions share it.
inline constexpr int32_t kLead = 1300;

// What the search is made of. A program plans by the default; benches leave parts out.
struct Tuning {
  // Bits: of StartsOf(), KnobsOf() and Part.
  uint64_t starts = ~uint64_t{0}, knobs = ~uint64_t{0}, parts = ~uint64_t{0};
  uint64_t seed = 1;       // of random changes: how much is chance
  int64_t work = 560'000;  // leaders that decodes of effort 5 place together
  bool Has(Part part) const { return (parts >> static_cast<int>(part) & 1) != 0; }
};

// Longest alpha, longest collective, compute of the step; picoseconds.
struct Units {
  int64_t alpha_ps = 1, longest_ps = 0, span_ps = 0;
};

struct Knob {
  const char* name;
  int64_t (*get)(const Settings&);
  void (*set)(Settings&, int64_t);
  std::vector<int64_t> values;  // ascending
};

// In the order in which they are worth a look.
std::vector<Knob> KnobsOf(const Units& units);

struct Start {
  const char* name;
  Settings settings;
};
std::vector<Start> StartsOf(const Units& units);

}  // namespace bucketd::search
