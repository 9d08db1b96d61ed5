#include "server/identity/trust.h"

#include "passes/base/status_macros.h"

namespace bucketd {

Trust::Trust(const TlsPaths& paths, const std::string& identities_path, IdentityMetrics& metrics)
    : metrics_(metrics),
      files_("certificates", {paths.certificate, paths.key, paths.client_ca},
             [paths] { return ReadTlsFiles(paths); },
             {metrics.certificates_taken, metrics.certificates_refused}),
      identities_("identities", {identities_path},
                  [identities_path] { return Identities::Read(identities_path); },
                  {metrics.identities_taken, metrics.identities_refused}) {}

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
