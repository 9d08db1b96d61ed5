// Series of a registry, with the help of the first one of their name.
#pragma once

#include <array>
#include <cstddef>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

#include "passes/base/collectives.h"

namespace bucketd::agent {

// Values of the labels "collective" and "direction".
inline constexpr std::array<const char*, 3> kKindNames = {"all_gather", "reduce_scatter",
                                                          "all_reduce"};
inline constexpr std::array<const char*, 2> kDirectionNames = {"in", "out"};

// Where its name is.
inline size_t IndexOf(CollectiveKind kind) {
  if (Scatters(kind)) return 1;
  return ReducesWhole(kind) ? 2 : 0;
}

inline prometheus::Counter& AddCounter(prometheus::Registry& registry, const char* name,
                                       const char* help, const prometheus::Labels& labels = {}) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}
inline prometheus::Gauge& AddGauge(prometheus::Registry& registry, const char* name,
                                   const char* help, const prometheus::Labels& labels = {}) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
}
inline prometheus::Histogram& AddHistogram(prometheus::Registry& registry, const char* name,
                                           const char* help, const prometheus::Labels& labels,
                                           const prometheus::Histogram::BucketBoundaries& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, bounds);
}

}  // namespace bucketd::agent
