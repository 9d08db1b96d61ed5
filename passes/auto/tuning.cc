#include "passes/auto/tuning.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace bucketd::search {
namespace {

template <auto Field>
Knob Plain(const char* name, std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  Knob knob;
  knob.name = name;
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
  constexpr int64_t kForever = kNever / 2;
  using S = Settings;
  return {
      Plain<&S::sinks_first>("sinks_first", {0, 1}),
      Plain<&S::slack_ps>("slack_ps",
                          {0, a / 2, a, 2 * a, 5 * a, 10 * a, 25 * a, 60 * a, 200 * a, kForever}),
      Plain<&S::tail_queue_ps>("tail_queue_ps", {0, l / 2, l, l + l / 2, 5 * l / 2, 5 * l,
                                                 span / 50, span / 20, span / 10, span / 5}),
      Plain<&S::batch_ps>("batch_ps",
                          {0, a / 3, a, 2 * a, 4 * a, 10 * a, 30 * a, 100 * a, kForever}),
      Plain<&S::batch_share>("batch_share", {20, 100, 200, 350, 500, 700, 1000, 2000, kNoShare}),
      Plain<&S::late_ps>("late_ps", {0, a / 3, a, 2 * a, 5 * a, 15 * a, 50 * a}),
      Plain<&S::lag>("lag", {0, 100, 300, 500, 800, 900, 950, 1000}),
      WeightsKnob(),
      Plain<&S::eager>("eager", {0, 1}),
      Plain<&S::gather_cap_ps>("gather_cap_ps", {a, 4 * a, l / 2, l, 2 * l, 5 * l, kForever}),
      Plain<&S::reduce_cap_ps>("reduce_cap_ps", {a, 4 * a, l / 2, l, 2 * l, 5 * l, kForever}),
      Plain<&S::packed_memory>("packed_memory", {0, 1}),
      Plain<&S::memory_share>("memory_share", {940, 970, 990, 1000}),
  };
}

std::vector<Start> StartsOf(const Units& units) {
  const int64_t alpha = units.alpha_ps, longest = units.longest_ps;
  const auto capped = [](int64_t cap) {
    Settings s;
    s.gather_cap_ps = s.reduce_cap_ps = cap;
    return s;
  };
  Settings soon = capped(std::max(longest, 8 * alpha));
  soon.slack_ps = 2 * alpha;
  soon.batch_ps = alpha;
  Settings early = capped(std::max(longest, 80 * alpha));
  early.slack_ps = 20 * alpha;
  early.batch_ps = 10 * alpha;

  Settings eager = capped(kNever);
  eager.eager = true;
  eager.slack_ps = kNever / 2;
  eager.lag = 500;
  eager.batch_ps = 10 * alpha;
  Settings cheap = eager;  // on compute
  cheap.wire_weight = 300;
  Settings lagging = eager;
  lagging.lag = 900;
  lagging.batch_ps = alpha;
  lagging.wire_weight = 1000;
  lagging.compute_weight = 50;
  Settings late = lagging;
  late.lag = 0;
  late.compute_weight = 100;
  late.batch_ps = late.late_ps = 4 * alpha;
  Settings whole = eager;  // buckets as large as memory lets them be
  whole.lag = 0;
  whole.wire_weight = 600;
  whole.compute_weight = 400;
  whole.late_ps = kNever / 2;
  whole.batch_ps = kNever;
  Settings halves = whole;
  halves.batch_share = kNoShare;

  Settings busy = eager;
  busy.wire_weight = 1000;
  busy.compute_weight = 20;
  busy.packed_memory = busy.sinks_first = true;
  Settings smaller = busy;
  smaller.gather_cap_ps = smaller.reduce_cap_ps = std::max(longest, 40 * alpha);
  Settings held = busy;
  held.sinks_first = false;
  held.gather_cap_ps = held.reduce_cap_ps = std::max(longest, 100 * alpha);
  held.batch_ps = 40 * alpha;
  held.tail_queue_ps = longest + longest / 2;

  Settings filling = capped(kNever);
  filling.slack_ps = alpha / 2;
  filling.gather_cap_ps = alpha;
  filling.late_ps = alpha / 3;
  filling.wire_weight = 300;
  filling.batch_ps = 0;
  filling.tail_queue_ps = units.span_ps / 5;
  return {{"just in time", soon},
          {"earlier", early},
          {"eager", cheap},
          {"lagging", lagging},
          {"late", late},
          {"whole", whole},
          {"whole reductions", halves},
          {"busy wires", busy},
          {"busy wires capped", smaller},
          {"busy wires with gradients held back", held},
          {"gradients fill waits", filling}};
}

}  // namespace bucketd::search
