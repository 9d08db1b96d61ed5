// Series of a registry, made where they are counted.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

#include "server/base/named.h"

namespace bucketd {

inline prometheus::Counter& AddCounter(prometheus::Registry& registry, const char* name,
                                       const char* help, const prometheus::Labels& labels = {}) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}

inline prometheus::Gauge& AddGauge(prometheus::Registry& registry, const char* name,
                                   const char* help, const prometheus::Labels& labels = {}) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
}

// A series for each value of an enum, which `label` names.
template <typename Metric, typename E>
class SeriesBy {
 public:
  // `values`: by position (named.h).
  template <size_t kCount>
  SeriesBy(prometheus::Registry& registry, const char* name, const char* help, const char* label,
           const std::array<Named<E>, kCount>& values) {
    for (const Named<E>& value : values) {
      const prometheus::Labels labels = {{label, value.name}};
      if constexpr (std::is_same_v<Metric, prometheus::Counter>) {
        series_.push_back(&AddCounter(registry, name, help, labels));
      } else {
        series_.push_back(&AddGauge(registry, name, help, labels));
      }
    }
  }
  Metric& operator()(E value) const { return *series_[static_cast<size_t>(value)]; }

 private:
  std::vector<Metric*> series_;
};
template <typename E>
using CounterBy = SeriesBy<prometheus::Counter, E>;
template <typename E>
using GaugeBy = SeriesBy<prometheus::Gauge, E>;

}  // namespace bucketd
