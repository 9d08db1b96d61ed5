#include "client/cli/tls_flags.h"

namespace bucketd {

void AddTlsFlags(const Command& command, const TlsFlags& tls, const std::optional<Flag>& server) {
  const auto add = [&](const std::string& name, const std::string& variable, std::string& path,
                       const std::string& help) {
    const Flag flag = command.AddOption(name, path, help).File().TypeName("FILE").Group("TLS");
    return server ? flag.EnvWith(variable, *server) : flag.Env(variable);
  };
  const Flag ca = add("--tls-ca", "BUCKETD_CLIENT_CA", tls.ca,
                      "the server has TLS: certificates in PEM of those who may vouch for it");
  if (server) ca.Needs("--server");
  const Flag of_key = add("--tls-key", "BUCKETD_CLIENT_KEY", tls.key,
                          "the key of the certificate, in PEM, not encrypted");
  add("--tls-certificate", "BUCKETD_CLIENT_CERT", tls.certificate,
      "who we are: a certificate in PEM")
      .Needs("--tls-ca")
      .Needs("--tls-key");
  of_key.Needs("--tls-certificate");
  add("--token-file", "BUCKETD_CLIENT_TOKEN_FILE", tls.token,
      "who we are, instead of a certificate: a JSON Web Token; read again when it changes")
      .Needs("--tls-ca");
}

}  // namespace bucketd
