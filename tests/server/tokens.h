// Issuers of tokens for tests: keys made here, and what they sign, right or wrong.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include <openssl/evp.h>

namespace bucketd {

std::string Base64Url(absl::string_view bytes);

class Issuing {
 public:
  enum class Key { kRsa, kP256, kEd25519, kShortRsa, kP384 };
  explicit Issuing(Key key);

  std::string Pem() const;  // of the public key
  std::string PrivatePem() const;
  // "{"kty": ...}"; `more` stands in it: ", "kid": "a"".
  std::string Jwk(absl::string_view more = "") const;
  static std::string Set(absl::string_view keys) {
    return "{\"keys\":[" + std::string(keys) + "]}";
  }

  // With a header that says the key's own algorithm and `more`.
  std::string Token(absl::string_view claims, absl::string_view more = "") const;
  std::string TokenWithHeader(absl::string_view header, absl::string_view claims) const;

 private:
  std::string Number(const char* parameter) const;

  const Key kind_;
  std::shared_ptr<EVP_PKEY> key_;
};

// Signed with HMAC by any bytes, as who mistakes a public key for a secret would check it.
std::string HmacToken(absl::string_view secret, absl::string_view claims);

}  // namespace bucketd
