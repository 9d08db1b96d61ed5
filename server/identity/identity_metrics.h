// What is counted of who callers are.
#pragma once

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

#include "server/base/add_metric.h"
#include "server/identity/reloaded.h"

namespace bucketd {

struct IdentityMetrics {
  // `registry` outlives this.
  explicit IdentityMetrics(prometheus::Registry& registry)
      : certificates(registry, kReloads, kReloadsHelp, {{"what", "certificates"}}),
        identities(registry, kReloads, kReloadsHelp, {{"what", "identities"}}),
        certificate_expires(AddGauge(registry, "bucketd_certificate_expires_seconds",
                                     "When the server's certificate expires, in seconds since "
                                     "1970; 0: there is none.")),
        unknown_callers(AddCounter(registry, kRefused, kRefusedHelp, {{"why", "unknown"}})),
        forbidden_calls(AddCounter(registry, kRefused, kRefusedHelp, {{"why", "forbidden"}})) {}

  ReloadCounters certificates, identities;
  prometheus::Gauge& certificate_expires;
  prometheus::Counter& unknown_callers;
  prometheus::Counter& forbidden_calls;

 private:
  static constexpr char kReloads[] = "bucketd_identity_reloads_total";
  static constexpr char kReloadsHelp[] =
      "Certificates, and identities with their issuers' keys, that were read again; refused: what "
      "was in force stays.";
  static constexpr char kRefused[] = "bucketd_identity_refused_calls_total";
  static constexpr char kRefusedHelp[] =
      "Calls refused because nobody knows the caller, its token is no good, or it lacks the role "
      "or is of another tenant.";
};

}  // namespace bucketd
