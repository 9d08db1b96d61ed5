// How a program's user names the files of a client with TLS.
#pragma once

#include <optional>
#include <string>

#include "client/cli/flags.h"

namespace bucketd {

// Variables that the options below set.
struct TlsFlags {
  std::string &ca, &certificate, &key, &token;
};

// --tls-ca, --tls-certificate, --tls-key and --token-file, else BUCKETD_CLIENT_CA,
// BUCKETD_CLIENT_CERT, BUCKETD_CLIENT_KEY and BUCKETD_CLIENT_TOKEN_FILE: files that are there, a
// key wherever there is a certificate, and authorities wherever there is any. `server`: for a
// command that asks one only where it has this option, which is "--server"; the files are for that.
void AddTlsFlags(const Command& command, const TlsFlags& tls,
                 const std::optional<Flag>& server = std::nullopt);

}  // namespace bucketd
