// Certificates for tests, made by the openssl command line as an operator would.
#pragma once

#include <string>

#include "client/client_tls.h"

namespace bucketd {

class Certificates {
 public:
  // Files go to `folder`, which is there.
  explicit Certificates(std::string folder) : folder_(std::move(folder)) {}

  // NAME.pem and NAME.key, which vouches for others.
  void MakeAuthority(const std::string& name) const;
  struct Leaf {
    std::string names;  // as openssl has them: "DNS:localhost,IP:127.0.0.1"; "": none
    std::string authority = "ca";
    int days = 2;            // -1: it expired yesterday
    std::string usage = {};  // "serverAuth"; "": any
  };
  // NAME.pem and NAME.key. Of files that are there already it is a new pair; the old one is gone at
  // once, as by mv.
  void Make(const std::string& name, const Leaf& leaf) const;

  std::string File(const std::string& file) const { return folder_ + "/" + file; }
  // Of the client `name`, who trusts the authority `ca`.
  client::ClientTls Client(const std::string& name, const std::string& ca = "ca") const {
    return {File(ca + ".pem"), File(name + ".pem"), File(name + ".key")};
  }

 private:
  void Run(const std::string& command) const;
  const std::string folder_;
};

}  // namespace bucketd
