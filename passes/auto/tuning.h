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
// A small graph has at most so many leaders: hundreds of decodes are cheap, so every value of every
// knob is tried, and orders are changed action by action.
inline constexpr int32_t kSmallLeaders = 2500;
// Thousandths of the budget. Small graphs, from kOrdersFromEffort on: changes of orders, and
// decodes. Large graphs: decodes alone.
inline constexpr int32_t kOrdersShare = 500, kDecodesShare = 750, kLargeShare = 1500;
inline constexpr int32_t kOrdersFromEffort = kDefaultEffort;
// Leaders, times 1 + groups / 4, that all decodes together may place: seconds of one core. A larger
// step still gets kLeastOfMillions decodes; one of more than kTooManySteps is not searched.
inline constexpr int64_t kMostSteps = 80'000'000, kLeastOfMillions = 4, kTooManySteps = 20'000'000;
// Decodes of the search for a sturdier plan: this work over the square of the leaders, because
// errors cancel out where there are many. At most, and below which number there is no such search.
inline constexpr int64_t kSturdierWork = 1'000'000'000, kMostSturdier = 1000, kLeastSturdier = 8;
// Cost of a replay, and of clearing state for a decode or replay: one part in so many of a decode.
inline constexpr int64_t kReplaysOfADecode = 4, kClearsOfADecode = 8;

// --- Near enough. Millionths above the lower bound at which the search stops: efforts up to
// kEnoughUntil, and up to kEnoughOfMoreUntil. Higher efforts never stop early.
inline constexpr int64_t kEnoughPpm = 500, kEnoughPpmOfMore = 100;
inline constexpr int32_t kEnoughUntil = kDefaultEffort, kEnoughOfMoreUntil = 7;
// How much slower than the fastest a sturdier plan may be, in thousandths: of what the fastest is
// above the bound; at least and at most of the step.
inline constexpr int32_t kGiven = 500, kLeastGiven = 8, kMostGiven = 20;

// --- Decodes of a candidate that is over the limit: in all, and those that reserve memory only
// where it overflowed, before the cap goes down everywhere.
inline constexpr int kMaxDecodes = 4, kLocalRepairs = 2;
// Reserved from so many leaders before the overflow, or one part in kPartAround of the step if that
// is more, to twice as many behind it; the overflow and kSpare thousandths of it, because the
// repaired order is another one.
inline constexpr int32_t kLeastAround = 8, kPartAround = 128, kSpare = 50;
inline constexpr int64_t kOneMore = 1024;  // bytes more, for tiny overflows
// Rounds over all knobs, and over all buckets: bounds.
inline constexpr int kKnobRounds = 3, kBucketRounds = 20;
// Thousandths of the best time: a start that takes more is given up on the way.
inline constexpr int32_t kHopeless = 1600;
// Under the settings of how many starts the other mode's buckets are tried, and those between
// collectives on the path: each costs two decodes, and a large step has a few dozen.
inline constexpr size_t kStartsOfOtherPlan = 2, kStartsOfBetween = 1;
// Former best orders that are kept: they may be sturdier than what came after them.
inline constexpr size_t kMostFound = 12;
// Moves of buckets: by how many members a cut shifts; how many neighbours are merged; into how many
// stretches a row of buckets is divided, merged in pairs, then whole.
inline constexpr int32_t kShifts[] = {1, 2, 4, 8, 16}, kRuns[] = {3, 4}, kStretches[] = {4, 8};

// --- Orders, action by action. A cycle is so many changes, then the search returns to the best
// order. kLoose: by how many thousandths a kept order may be slower than the best as a cycle
// begins; it gets stricter. In every second cycle only orders that are no slower are kept.
inline constexpr int64_t kCycle = 160;
inline constexpr int32_t kLoose[] = {0, 4, 0, 16, 0, 50};
// A cycle that met mostly known orders makes the next ones looser by so many thousandths and lets
// them make more changes at once, until something better is found.
inline constexpr int32_t kLooser = 50;
inline constexpr size_t kMostLooser = 6, kMostMoreChanges = 3;
// Kinds of change, drawn from sixteen numbers; each kind ends below its number. Most improvements
// come from easing a wait that stalls the step, and from moving any action. The last kind exchanges
// members.
enum ChangeBelow : size_t {
  kEase = 5,
  kMove = 10,
  kForm = 11,
  kSplit = 12,
  kMerge = 14,
  kAll = 16
};

// --- Sturdier plans. Cases of the robustness evaluator, in 1,024ths: figures that many steps
// depend on are off by kEither up or down, kernels by up to kSpread (20 and 30 %). They are none of
// the distributions that benches report (tests/passes/perturbed_costs.h).
inline constexpr int64_t kEither = 205, kSpread = 307;
// After every kCasesAtOnce cases an order is given up if its mean is so many thousandths above what
// it has to beat.
inline constexpr int kCasesAtOnce = 4;
inline constexpr int32_t kHopelessCases = 5;
// Time of a byte on faster and on slower wires, over nominal: costs that are off by 30 % are seldom
// further off. These searches get so many thousandths of the memory limit, because buffers live
// longer on slower wires, and at most this effort.
inline constexpr double kFasterWires = 0.75, kSlowerWires = 1.33;
inline constexpr int32_t kOtherWiresMemory = 988, kOtherWiresEffort = kDefaultEffort;
// One case of nominal costs for so many perturbed ones. Without them the least mean wins by
// hundredths of a percent, which is chance, and costs more than that where costs are right.
inline constexpr int kCasesOfNominal = 4;

// --- Uses. A reduction with more leaders below it is no sink, a gather with more above it no root.
inline constexpr int32_t kMaxBelow = 24, kMaxAbove = 64;
// Thousandths of a gather's wire time that are planned for, because reductions share the wire.
inline constexpr int32_t kLead = 1300;
// A batch of reductions is launched at this share of the remaining compute, which still hides it.
inline constexpr int32_t kBatchShare = 500;
// Weight gradients are held back once the rest of the step is at most kQueuesLeft times the queue
// (Settings::tail_queue_ps), if memory holds them for kQueuesHeld times the queue. Within kShort
// thousandths of the cap memory is short, and reductions are launched at once.
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
