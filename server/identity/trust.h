// Whom the server trusts and what it shows them: certificates, identities and issuers' keys as they
// are on disk now. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"

#include "server/identity/identities.h"
#include "server/identity/identity_metrics.h"
#include "server/identity/reloaded.h"
#include "server/identity/tls_files.h"

namespace bucketd {

struct TrustFiles {
  TlsPaths tls;
  std::string identities;
  bool tokens = false;  // some issuer is wanted, too
};

class Trust {
 public:
  // `metrics` outlives this.
  Trust(const TrustFiles& files, IdentityMetrics& metrics);

  // Once, before the others. The error names the file.
  absl::Status Load();
  // Reads again what has changed. What is no good is logged and counted, and changes nothing.
  void Look();

  std::shared_ptr<const TlsFiles> files() const { return files_.Get(); }
  std::shared_ptr<const Identities> identities() const { return identities_.Get(); }

 private:
  IdentityMetrics& metrics_;
  Reloaded<TlsFiles> files_;
  Reloaded<Identities> identities_;
};

}  // namespace bucketd
