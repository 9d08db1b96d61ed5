// What a listener with TLS shows and asks for.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace bucketd {

struct TlsPaths {
  std::string certificate;  // PEM: the server's own, then those between it and its authority
  std::string key;          // PEM, not encrypted
  std::string client_ca;    // PEM: the authorities of clients' certificates; "": none are asked for
};

struct TlsFiles {
  std::string certificate, key, client_ca;
  int64_t expires_unix_s = 0;  // the server's certificate
};

// INVALID_ARGUMENT or NOT_FOUND names the file: one that cannot be read, is no PEM of its kind to
// its end, has expired or is not valid yet, or a key that does not belong to the certificate (which
// is so for a moment while both are being replaced).
absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsPaths& paths);

}  // namespace bucketd
