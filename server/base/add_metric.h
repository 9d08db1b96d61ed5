// Series of a registry, made where they are counted.
#pragma once

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

namespace bucketd {

inline prometheus::Counter& AddCounter(prometheus::Registry& registry, const char* name,
                                       const char* help, const prometheus::Labels& labels = {}) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}

inline prometheus::Gauge& AddGauge(prometheus::Registry& registry, const char* name,
                                   const char* help, const prometheus::Labels& labels = {}) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
}

}  // namespace bucketd
