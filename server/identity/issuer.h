// Who signs tokens, as the identities file has it.
//
//   [[issuer]]
//   name = "ci"                            # names of its tokens begin with "JWT:ci/"
//   iss = "https://tokens.example.org"     # as its tokens say, byte for byte
//   audience = "bucketd"                   # what they have to be meant for
//   keys_file = "ci.jwks"                  # public_key.h; beside this file, if it is no whole path
//   claim = "sub"                          # which claim is the name; left out: "sub"
#pragma once

#include <string>
#include <vector>

#include "server/identity/public_key.h"

namespace bucketd {

struct Issuer {
  std::string name, iss, audience, keys_file;
  std::string claim = "sub";
  std::vector<PublicKey> keys;
  int line = 0;  // of the file
};

}  // namespace bucketd
