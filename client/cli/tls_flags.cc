#include "client/cli/tls_flags.h"

namespace bucketd {
namespace {

Flag AddFile(const Command& command, const std::string& name, const std::string& variable,
             std::string& path, const std::string& help) {
  return command.AddOption(name, path, help).Env(variable).File().TypeName("FILE").Group("TLS");
}

}  // namespace

void AddTlsFlags(const Command& command, const TlsFlags& tls) {
  AddFile(command, "--tls-ca", "BUCKETD_CLIENT_CA", tls.ca,
          "the server has TLS: certificates in PEM of those who may vouch for it");
  const Flag of_key = AddFile(command, "--tls-key", "BUCKETD_CLIENT_KEY", tls.key,
                              "the key of the certificate, in PEM, not encrypted");
  AddFile(command, "--tls-certificate", "BUCKETD_CLIENT_CERT", tls.certificate,
          "who we are: a certificate in PEM")
      .Needs("--tls-ca")
      .Needs("--tls-key");
  of_key.Needs("--tls-certificate");
  AddFile(command, "--token-file", "BUCKETD_CLIENT_TOKEN_FILE", tls.token,
          "who we are, instead of a certificate: a JSON Web Token; read again when it changes")
      .Needs("--tls-ca");
}

}  // namespace bucketd
