// Public keys that signatures of tokens are checked with.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <openssl/evp.h>

namespace bucketd {

// What a key signs with is the key's own: a token does not choose.
enum class SignatureKind { kRs256, kEs256, kEdDsa };
// As tokens name it: "RS256".
absl::string_view Name(SignatureKind kind);

// Thread-safe.
class PublicKey {
 public:
  // INVALID_ARGUMENT for what is no RSA key of 2048 to 8192 bits, no P-256 and no Ed25519 key.
  static absl::StatusOr<PublicKey> Of(std::shared_ptr<EVP_PKEY> key, std::string id);

  SignatureKind kind() const { return kind_; }
  const std::string& id() const { return id_; }  // "kid"; "": it has none
  bool Signed(absl::string_view text, absl::string_view signature) const;

 private:
  PublicKey(std::shared_ptr<EVP_PKEY> key, SignatureKind kind, std::string id)
      : key_(std::move(key)), kind_(kind), id_(std::move(id)) {}

  std::shared_ptr<EVP_PKEY> key_;
  SignatureKind kind_;
  std::string id_;
};

// Of a file in PEM (-----BEGIN PUBLIC KEY-----, one or more) or a JSON Web Key Set, of which keys
// of other kinds and for other ends are left out. INVALID_ARGUMENT or NOT_FOUND names the file and
// what is wrong: no key left, more than 64, a private or a shared one, a damaged one.
absl::StatusOr<std::vector<PublicKey>> ReadPublicKeys(const std::string& path);

}  // namespace bucketd
