// How a program's user names the files of a client with TLS.
#pragma once

#include <string>

#include "client/cli/flags.h"

namespace bucketd {

// Variables that the options below set.
struct TlsFlags {
  std::string &ca, &certificate, &key, &token;
};

// --tls-ca, --tls-certificate, --tls-key and --token-file, else BUCKETD_CLIENT_CA,
// BUCKETD_CLIENT_CERT, BUCKETD_CLIENT_KEY and BUCKETD_CLIENT_TOKEN_FILE: files that are there, a
// key wherever there is a certificate, and authorities wherever there is any.
void AddTlsFlags(const Command& command, const TlsFlags& tls);
// For a command that asks a server only where it has the option `server`: the files are for that.
void AddTlsFlagsOf(const Flag& server, const Command& command, const TlsFlags& tls);

}  // namespace bucketd
