// What is counted of who callers are.
#pragma once

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

namespace bucketd {

struct IdentityMetrics {
  // `registry` outlives this.
  explicit IdentityMetrics(prometheus::Registry& registry);

  prometheus::Counter& certificates_taken;
  prometheus::Counter& certificates_refused;
  prometheus::Counter& identities_taken;
  prometheus::Counter& identities_refused;
  prometheus::Gauge& certificate_expires;
  prometheus::Counter& unknown_callers;
  prometheus::Counter& forbidden_calls;
};

}  // namespace bucketd
