#include "server/identity/identity_metrics.h"

#include "server/base/add_metric.h"

namespace bucketd {
namespace {

constexpr char kReloads[] = "bucketd_identity_reloads_total";
constexpr char kReloadsHelp[] =
    "Certificates, and identities with their issuers' keys, that were read again; refused: what "
    "was in force stays.";
constexpr char kRefused[] = "bucketd_identity_refused_calls_total";
constexpr char kRefusedHelp[] =
    "Calls refused because nobody knows the caller, its token is no good, or it lacks the role or "
    "is "
    "of another tenant.";

}  // namespace

IdentityMetrics::IdentityMetrics(prometheus::Registry& r)
    : certificates_taken(
          AddCounter(r, kReloads, kReloadsHelp, {{"what", "certificates"}, {"result", "taken"}})),
      certificates_refused(
          AddCounter(r, kReloads, kReloadsHelp, {{"what", "certificates"}, {"result", "refused"}})),
      identities_taken(
          AddCounter(r, kReloads, kReloadsHelp, {{"what", "identities"}, {"result", "taken"}})),
      identities_refused(
          AddCounter(r, kReloads, kReloadsHelp, {{"what", "identities"}, {"result", "refused"}})),
      certificate_expires(AddGauge(r, "bucketd_certificate_expires_seconds",
                                   "When the server's certificate expires, in seconds since 1970; "
                                   "0: there is none.")),
      unknown_callers(AddCounter(r, kRefused, kRefusedHelp, {{"why", "unknown"}})),
      forbidden_calls(AddCounter(r, kRefused, kRefusedHelp, {{"why", "forbidden"}})) {}

}  // namespace bucketd
