// How a program's user names the files of a client with TLS.
#pragma once

#include <string>

#include "client/cli/flags.h"

namespace bucketd {

// --tls-ca, --tls-certificate and --tls-key, else BUCKETD_CLIENT_CA, BUCKETD_CLIENT_CERT and
// BUCKETD_CLIENT_KEY: files that are there, a key wherever there is a certificate, and authorities
// wherever there is either.
void AddTlsFlags(const Command& command, std::string& ca, std::string& certificate,
                 std::string& key);

}  // namespace bucketd
