#include "passes/auto/knobs.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace bucketd::search {
namespace {

template <auto Field>
Knob Plain(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  Knob knob;
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

// How late the first bucket may be.
Knob HeadKnob(std::vector<int64_t> values) {
  Knob knob = Plain<&Settings::head_late_ps>(std::move(values));
  knob.set = [](Settings& s, int64_t value) {
    s.head_buckets = std::max(s.head_buckets, 1);
    s.head_late_ps = value;
  };
  return knob;
}

}  // namespace

std::vector<Knob> KnobsOf(int64_t a, int64_t l, int64_t span) {
  constexpr int64_t kForever = kNever / 2;
  using S = Settings;
  return {
      Plain<&S::sinks_first>({0, 1}),
      Plain<&S::slack_ps>({0, a / 2, a, 2 * a, 5 * a, 10 * a, 25 * a, 60 * a, 200 * a, kForever}),
      Plain<&S::tail_queue_ps>(
          {0, l / 2, l, l + l / 2, 5 * l / 2, 5 * l, span / 50, span / 20, span / 10, span / 5}),
      Plain<&S::batch_ps>({0, a / 3, a, 2 * a, 4 * a, 10 * a, 30 * a, 100 * a, kForever}),
      Plain<&S::batch_share>({20, 100, 200, 350, 500, 700, 1000, 2000, kNoShare}),
      Plain<&S::late_ps>({0, a / 3, a, 2 * a, 5 * a, 15 * a, 50 * a}),
      Plain<&S::lag>({0, 100, 300, 500, 800, 900, 950, 1000}),
      HeadKnob({0, a / 3, a, 3 * a, 10 * a}),
      WeightsKnob(),
      Plain<&S::tail_reach>({1000, 1500, 2000, 3000, 5000, 1'000'000}),
      Plain<&S::queue_ps>({0, a / 2, a, 2 * a, 5 * a, 20 * a, l, 2 * l, span / 50, span / 20}),
      Plain<&S::overshoot>({0, 300, 600, 1000}),
      Plain<&S::window>({0, 20, 100, 400, 4000, 1'000'000}),
      Plain<&S::lead>({1000, 1150, 1300, 1600, 2000, 3000, 5000}),
      Plain<&S::eager>({0, 1}),
      Plain<&S::gather_cap_ps>({a, 4 * a, l / 2, l, 2 * l, 5 * l, kForever}),
      Plain<&S::reduce_cap_ps>({a, 4 * a, l / 2, l, 2 * l, 5 * l, kForever}),
      Plain<&S::head_buckets>({0, 1, 2, 3}),
      Plain<&S::largest_last>({0, 1}),
      Plain<&S::packed_memory>({0, 1}),
      Plain<&S::memory_share>({940, 970, 990, 1000}),
  };
}

}  // namespace bucketd::search
