// Which files make a client known to a server with TLS, and the server to it.
#pragma once

#include <string>

namespace bucketd::client {

// Files in PEM, which may be replaced while a client lives: new connections use what is there then.
// All empty: no TLS. Unix sockets have none in any case.
struct ClientTls {
  std::string ca;           // the authorities that may vouch for the server
  std::string certificate;  // the client's own, followed by those between it and its authority
  std::string key;          // not encrypted
  // A JSON Web Token, not in PEM: instead of a certificate, or to be somebody else than the
  // certificate says. It goes with each call, over TLS alone.
  std::string token = {};

  bool on() const { return !ca.empty(); }
  bool with_certificate() const { return !certificate.empty() && !key.empty(); }
};

}  // namespace bucketd::client
