#include "passes/auto/tuning.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace bucketd::search {
namespace {

template <auto Field>
Knob Plain(const char* name, const char* why, std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  Knob knob;
  knob.name = name;
  knob.why = why;
  knob.values = std::move(values);
  knob.get = [](const Settings& s) { return int64_t{s.*Field}; };
  knob.set = [](Settings& s, int64_t value) {
    using Value = std::remove_reference_t<decltype(s.*Field)>;
    if constexpr (std::is_same_v<Value, int64_t>) {
      s.*Field = value;
    } else {
      s.*Field = static_cast<Value>(value);
    }
  };
  return knob;
}

// From forms that are cheap on compute to forms that are cheap on the wire.
struct Weights {
  int32_t wire, compute;
};
constexpr Weights kWeights[] = {{20, 1000}, {80, 1000}, {300, 1000}, {600, 400}, {1000, 50}};

Knob WeightsKnob() {
  Knob knob;
  knob.name = "weights";
  knob.why = "forms that are cheap on compute, or on the wire: what is dear differs by step";
  for (size_t i = 0; i < std::size(kWeights); ++i) knob.values.push_back(static_cast<int64_t>(i));
  // The nearest by wire time.
  knob.get = [](const Settings& s) {
    size_t at = 0;
    while (at + 1 < std::size(kWeights) && kWeights[at].wire < s.wire_weight) ++at;
    return static_cast<int64_t>(at);
  };
  knob.set = [](Settings& s, int64_t value) {
    const Weights& weights = kWeights[static_cast<size_t>(value)];
    s.wire_weight = weights.wire;
    s.compute_weight = weights.compute;
  };
  return knob;
}

}  // namespace

std::vector<Knob> KnobsOf(const Units& units) {
  const int64_t a = units.alpha_ps, l = units.longest_ps, span = units.span_ps;
  using S = Settings;
  return {
      Plain<&S::sinks_first>("sinks_first",
                             "reductions before due gathers: they free memory that gathers want",
                             {0, 1}),
      Plain<&S::slack_ps>("slack_ps", "how early a gather may begin: hides it, costs memory",
                          {0, a / 2, a, 2 * a, 5 * a, 10 * a, 25 * a, 60 * a, 200 * a, kForever}),
      Plain<&S::tail_queue_ps>(
          "tail_queue_ps", "weight gradients held back fill the waits at the step's end",
          {0, l / 2, l, l + l / 2, 5 * l / 2, 5 * l, span / 50, span / 20, span / 10, span / 5}),
      Plain<&S::batch_ps>("batch_ps", "reductions wait for others: fewer alphas, a later end",
                          {0, a / 3, a, 2 * a, 4 * a, 10 * a, 30 * a, 100 * a, kForever}),
      Plain<&S::late_ps>("late_ps", "a bucket may end behind its first use, if that saves an alpha",
                         {0, a / 3, a, 2 * a, 5 * a, 15 * a, 50 * a}),
      Plain<&S::lag>("lag",
                     "where the wire binds all gathers are late: larger buckets cost nothing",
                     {0, 100, 300, 500, 800, 900, 950, 1000}),
      WeightsKnob(),
      Plain<&S::gather_cap_ps>("gather_cap_ps", "smaller buckets of gathers end sooner",
                               {a, 4 * a, l / 2, l, 2 * l, 5 * l, kForever}),
      Plain<&S::reduce_cap_ps>("reduce_cap_ps", "smaller buckets of reductions begin sooner",
                               {a, 4 * a, l / 2, l, 2 * l, 5 * l, kForever}),
      Plain<&S::packed_memory>("packed_memory",
                               "gathers leave memory for the buffers of packed buckets", {0, 1}),
      Plain<&S::memory_share>("memory_share", "leaves memory that what comes later wants",
                              {940, 970, 990, 1000}),
  };
}

namespace {

Settings Capped(int64_t cap) {
  Settings s;
  s.gather_cap_ps = s.reduce_cap_ps = cap;
  return s;
}

// Gathers that begin as soon as memory lets them.
Settings Eager(int64_t alpha) {
  Settings s;
  s.slack_ps = kForever;
  s.lag = 500;
  s.batch_ps = 10 * alpha;
  return s;
}

// Gathers begin shortly before their use.
void AddInTime(const Units& units, std::vector<Start>& starts) {
  const int64_t alpha = units.alpha_ps, longest = units.longest_ps;
  Settings soon = Capped(std::max(longest, 8 * alpha));
  soon.slack_ps = 2 * alpha;
  soon.batch_ps = alpha;
  starts.push_back({"just in time", "compute to spare, little memory", soon});
  Settings early = Capped(std::max(longest, 80 * alpha));
  early.slack_ps = 20 * alpha;
  early.batch_ps = 10 * alpha;
  starts.push_back({"earlier", "the same with large alphas: larger buckets", early});
}

void AddEager(const Units& units, std::vector<Start>& starts) {
  const int64_t alpha = units.alpha_ps;
  Settings cheap = Eager(alpha);
  cheap.wire_weight = 300;
  starts.push_back({"eager", "memory to spare; buckets that are cheap on compute", cheap});
  Settings late = Eager(alpha);
  late.lag = 0;
  late.wire_weight = 1000;
  late.compute_weight = 100;
  late.batch_ps = late.late_ps = 4 * alpha;
  starts.push_back({"late", "wires that bind in parts of the step (hybrid sharding)", late});
}

void AddBusyWires(const Units& units, std::vector<Start>& starts) {
  const int64_t alpha = units.alpha_ps, longest = units.longest_ps;
  Settings busy = Eager(alpha);
  busy.wire_weight = 1000;
  busy.compute_weight = 20;
  busy.packed_memory = busy.sinks_first = true;
  starts.push_back({"busy wires", "wires that bind, in little memory", busy});
  Settings smaller = busy;
  smaller.gather_cap_ps = smaller.reduce_cap_ps = std::max(longest, 40 * alpha);
  starts.push_back({"busy wires capped", "the same where large buckets do not fit", smaller});
  Settings held = busy;
  held.sinks_first = false;
  held.gather_cap_ps = held.reduce_cap_ps = std::max(longest, 100 * alpha);
  held.batch_ps = 40 * alpha;
  held.tail_queue_ps = longest + longest / 2;
  starts.push_back({"busy wires with gradients held back",
                    "the same with reductions that end behind the last kernel", held});
}

}  // namespace

std::vector<Start> StartsOf(const Units& units) {
  std::vector<Start> starts;
  AddInTime(units, starts);
  AddEager(units, starts);
  AddBusyWires(units, starts);
  Settings filling = Capped(kNever);
  filling.slack_ps = units.alpha_ps / 2;
  filling.gather_cap_ps = units.alpha_ps;
  filling.late_ps = units.alpha_ps / 3;
  filling.wire_weight = 300;
  filling.batch_ps = 0;
  filling.tail_queue_ps = units.span_ps / 5;
  starts.push_back(
      {"gradients fill waits", "collectives on the path (tensor parallelism, experts)", filling});
  return starts;
}

}  // namespace bucketd::search
