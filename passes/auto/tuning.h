// Everything about the search that was chosen and not derived, in one place; what leaving a start,
// a knob or a part out costs is measured by build/bin/ablation (tests/bench/results/ablation.md).
// Bounds on time that no order comes near stand where they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/string_view.h"

#include "passes/auto/settings.h"

namespace bucketd::search {

// Searches that can be left out.
enum class Part : uint8_t {
  kOtherPlan,
  kBetween,
  kBuckets,
  kOrders,
  kLooser,
  kFastWires,
  kSlowWires,
  kSturdier,
};
struct PartInfo {
  const char *name, *why;
};
inline constexpr PartInfo kParts[] = {
    {"other plan", "starts from the best other mode's buckets, too"},
    {"between", "and from one bucket for what is needed between two collectives on the path"},
    {"buckets", "buckets shift, merge, split and change their form, one after the other"},
    {"orders", "orders are changed action by action; small steps"},
    {"looser cycles", "cycles of that which come upon what is known make the next ones looser"},
    {"fast wires", "orders for wires that are faster"},
    {"slow wires", "and slower; small steps"},
    {"sturdier", "around the best plan for one that fares better under perturbed costs"},
};
static_assert(std::size(kParts) == static_cast<size_t>(Part::kSturdier) + 1);

// --- Work. A leader placed by a decode is the unit; budgets are those of the default effort, and
// every step of effort doubles or halves them.
inline constexpr int32_t kDefaultEffort = 5;

// Decodes of a graph: small ones are cheap, large ones get a few in any case.
inline constexpr int64_t kLeastDecodes = 40, kMostDecodes = 1400;
// So few leaders that hundreds of decodes are cheap: knobs are swept whole, orders changed action
// by action.
inline constexpr int32_t kSmallLeaders = 2500;
// Of a small graph's work, the part that changes orders, and what is left for decodes where an
// effort has enough of them for a good order to begin with: that finds what no decode does. Larger
// graphs, which are decoded alone, get half as much again.
inline constexpr int32_t kOrdersShare = 500, kDecodesShare = 750, kLargeShare = 1500;
inline constexpr int32_t kOrdersFromEffort = kDefaultEffort;
// Leaders, times 1 + groups / 4, that all decodes together may place: seconds of
// one core. A step of millions of nodes gets the least number of decodes all the same; one of more
// than the latter is not searched.
inline constexpr int64_t kMostSteps = 80'000'000, kLeastOfMillions = 4, kTooManySteps = 20'000'000;
// Around the fastest plan for a sturdier one: leaders squared, since errors cancel out where there
// are many; less than the least is none.
inline constexpr int64_t kSturdierWork = 1'000'000'000, kMostSturdier = 1000, kLeastSturdier = 8;
// To replay an order takes so much less than to decode it; to clear for a decode or a replay, so
// much less than its leaders.
inline constexpr int64_t kReplaysOfADecode = 4, kClearsOfADecode = 8;

// --- Near enough. Millionths above the lower bound at which an effort looks no further: what
// nobody measures; more effort wants it nearer, and from 8 on nothing is near enough.
inline constexpr int64_t kEnoughPpm = 500, kEnoughPpmOfMore = 100;
inline constexpr int32_t kEnoughUntil = kDefaultEffort, kEnoughOfMoreUntil = 7;
// What a sturdier plan may take beyond the fastest: so much of what that is above the bound, and at
// least and at most so many thousandths of the step.
inline constexpr int32_t kGiven = 500, kLeastGiven = 8, kMostGiven = 20;

// --- Decodes of a candidate that is over the limit: in all, and those that leave memory free only
// where it overflowed, before the cap goes down everywhere.
inline constexpr int kMaxDecodes = 4, kLocalRepairs = 2;
// Where: so many leaders before and twice as many behind, or this part of the step if that is more;
// and so many thousandths more than was over, since the repaired order is another one.
inline constexpr int32_t kLeastAround = 8, kPartAround = 128, kSpare = 50;
inline constexpr int64_t kOneMore = 1024;  // bytes, where that is next to nothing
// Rounds over all knobs, and over all buckets: bounds.
inline constexpr int kKnobRounds = 3, kBucketRounds = 20;
// Thousandths of the best time: a start that takes more is given up on the way.
inline constexpr int32_t kHopeless = 1600;
// Starts under whose settings another mode's buckets are tried, and those between collectives on
// the path: each costs two decodes, of the few dozen that a large step has.
inline constexpr size_t kStartsOfOtherPlan = 2, kStartsOfBetween = 1;
// Orders that were the best for a while and may be sturdier than what came after them.
inline constexpr size_t kMostFound = 12;
// Buckets: by how many members a cut shifts; runs that are merged; into how many stretches a row of
// buckets is taken apart to merge within each.
inline constexpr int32_t kShifts[] = {1, 2, 4, 8, 16}, kRuns[] = {3, 4}, kStretches[] = {4, 8};

// --- Orders, action by action: changes before it returns to the best order. In every second such
// cycle only orders that are no slower are kept; the others begin by keeping those that are so many
// thousandths slower than the best, and get stricter.
inline constexpr int64_t kCycle = 160;
inline constexpr int32_t kLoose[] = {0, 4, 0, 16, 0, 50};
// Small steps: a cycle that knew most of what it came upon makes those behind it looser by so many
// thousandths, and lets them change more at once, until something better is found.
inline constexpr int32_t kLooser = 50;
inline constexpr size_t kMostLooser = 6, kMostMoreChanges = 3;
// Of sixteen changes: those that ease a wait in which the step stands still, and those that move
// any action, are what most improvements come from; a form, a split, two merges, the rest exchanges
// members. Below which number each kind ends.
enum ChangeBelow : size_t {
  kEase = 5,
  kMove = 10,
  kForm = 11,
  kSplit = 12,
  kMerge = 14,
  kAll = 16
};

// --- Sturdier plans. Perturbed cases are not any of the distributions that are reported
// (tests/passes/perturbed_costs.h) but two levels of what many steps depend on, and kernels that
// are off evenly up to the spread, in 1,024ths: 20 and 30 %.
inline constexpr int64_t kEither = 205, kSpread = 307;
// Cases after which an order is given up whose mean is so many thousandths above what it has to
// beat.
inline constexpr int kCasesAtOnce = 4;
inline constexpr int32_t kHopelessCases = 5;
// Costs that are off by 30 % are seldom further off than this: what a byte takes on faster wires,
// and on slower ones. And the share of the limit in thousandths, since buffers live longer on
// slower wires than those that an order was made for. More effort looks around what this one finds.
inline constexpr double kFasterWires = 0.75, kSlowerWires = 1.33;
inline constexpr int32_t kOtherWiresMemory = 988, kOtherWiresEffort = kDefaultEffort;
// Nominal costs count as one perturbed case for so many of them: else the least mean of a few cases
// wins by hundredths of a percent, which is chance, and costs more than that where costs are right.
inline constexpr int kCasesOfNominal = 4;

// --- Uses: a reduction with more leaders below it is no sink, a gather with more above it no root.
inline constexpr int32_t kMaxBelow = 24, kMaxAbove = 64;
// Thousandths of a gather's time on the wire that are planned for: reductions share it.
inline constexpr int32_t kLead = 1300;
// Thousandths of the compute that is left at which a batch of reductions goes: it is still hidden.
inline constexpr int32_t kBatchShare = 500;
// Weight gradients are held back where so many times the queue is left of the step, and where
// memory holds them while this many times the queue passes. Memory is short within so many
// thousandths of the cap: reductions go at once.
inline constexpr int64_t kQueuesLeft = 3, kQueuesHeld = 2;
inline constexpr int32_t kShort = 5;

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
  const char* why;
  int64_t (*get)(const Settings&);
  void (*set)(Settings&, int64_t);
  std::vector<int64_t> values;  // ascending
};

// In the order in which they are worth a look.
std::vector<Knob> KnobsOf(const Units& units);

struct Start {
  const char* name;
  const char* why;  // the steps that it is for
  Settings settings;
};
std::vector<Start> StartsOf(const Units& units);

}  // namespace bucketd::search
