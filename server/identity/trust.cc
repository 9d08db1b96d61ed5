#include "server/identity/trust.h"

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

std::vector<std::string> NamedIn(const TlsPaths& paths) {
  std::vector<std::string> named = {paths.certificate, paths.key};
  if (!paths.client_ca.empty()) named.push_back(paths.client_ca);
  return named;
}

absl::StatusOr<Identities> ReadIdentities(const TrustFiles& files) {
  absl::StatusOr<Identities> identities = Identities::Read(files.identities);
  if (!identities.ok() || !files.tokens || !identities->issuers().empty()) return identities;
  return absl::InvalidArgumentError(absl::StrCat(
      files.identities, ": expected an [[issuer]], since tokens are accepted (--accept-tokens)"));
}

}  // namespace

Trust::Trust(const TrustFiles& files, IdentityMetrics& metrics)
    : metrics_(metrics),
      files_(
          "certificates", NamedIn(files.tls), [tls = files.tls] { return ReadTlsFiles(tls); },
          metrics.certificates),
      identities_(
          "identities", {files.identities}, [files] { return ReadIdentities(files); },
          metrics.identities, [](const Identities& identities) { return identities.files(); }) {}

absl::Status Trust::Load() {
  RETURN_IF_ERROR(files_.Load());
  metrics_.certificate_expires.Set(static_cast<double>(files()->expires_unix_s));
  return identities_.Load();
}

void Trust::Look() {
  files_.Look();
  metrics_.certificate_expires.Set(static_cast<double>(files()->expires_unix_s));
  identities_.Look();
}

}  // namespace bucketd
