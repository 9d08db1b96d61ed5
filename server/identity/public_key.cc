#include "server/identity/public_key.h"

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "passes/base/status_macros.h"
#include "server/identity/json_web_key.h"
#include "server/identity/openssl_free.h"
#include "server/identity/small_file.h"

namespace bucketd {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 10;
constexpr size_t kMaxKeys = 64;
constexpr int kLeastRsaBits = 2048, kMostRsaBits = 8192;
constexpr size_t kP256Bytes = 32;

bool IsP256(const EVP_PKEY* key) {
  std::array<char, 32> name{};
  size_t size = 0;
  return EVP_PKEY_get_group_name(key, name.data(), name.size(), &size) == 1 &&
         absl::string_view(name.data(), size) == "prime256v1";
}

// Tokens have both numbers side by side, OpenSSL wants them in DER.
std::string DerOf(absl::string_view signature) {
  if (signature.size() != 2 * kP256Bytes) return "";
  const auto* bytes = reinterpret_cast<const unsigned char*>(signature.data());
  const std::unique_ptr<ECDSA_SIG, OpenSslFree> numbers(ECDSA_SIG_new());
  if (ECDSA_SIG_set0(numbers.get(), BN_bin2bn(bytes, kP256Bytes, nullptr),
                     BN_bin2bn(bytes + kP256Bytes, kP256Bytes, nullptr)) != 1) {
    return "";
  }
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(numbers.get(), &der);
  if (size <= 0) return "";
  std::string text(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return text;
}

// Null: there are no more. What is in PEM and no key at all counts as a damaged one.
absl::StatusOr<std::shared_ptr<EVP_PKEY>> NextKey(BIO* pem) {
  ERR_clear_error();
  char *name = nullptr, *header = nullptr;
  unsigned char* der = nullptr;
  long size = 0;
  const bool is_read = PEM_read_bio(pem, &name, &header, &der, &size) == 1;
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const unsigned char* begin = der;
  std::shared_ptr<EVP_PKEY> key(is_read ? d2i_PUBKEY(nullptr, &begin, size) : nullptr,
                                EVP_PKEY_free);
  OPENSSL_free(name);
  OPENSSL_free(header);
  OPENSSL_free(der);
  ERR_clear_error();
  if (key == nullptr && (is_read || !at_end)) {
    return absl::InvalidArgumentError("expected a public key, whole and in PEM");
  }
  return key;
}

absl::StatusOr<std::vector<PublicKey>> KeysInPem(const std::string& text) {
  if (absl::StrContains(text, "PRIVATE KEY-----")) {
    return absl::InvalidArgumentError("holds a private key, which its issuer should keep");
  }
  const std::unique_ptr<BIO, OpenSslFree> pem(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  std::vector<PublicKey> keys;
  while (true) {
    absl::StatusOr<std::shared_ptr<EVP_PKEY>> key = NextKey(pem.get());
    if (key.ok() && *key == nullptr) return keys;
    absl::StatusOr<PublicKey> taken =
        key.ok() ? PublicKey::Of(*std::move(key), "") : absl::StatusOr<PublicKey>(key.status());
    if (!taken.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", keys.size() + 1, ": ", taken.status().message()));
    }
    keys.push_back(*std::move(taken));
  }
}

}  // namespace

absl::string_view Name(SignatureKind kind) {
  switch (kind) {
    case SignatureKind::kRs256:
      return "RS256";
    case SignatureKind::kEs256:
      return "ES256";
    case SignatureKind::kEdDsa:
      return "EdDSA";
  }
  return "";
}

absl::StatusOr<PublicKey> PublicKey::Of(std::shared_ptr<EVP_PKEY> key, std::string id) {
  switch (EVP_PKEY_get_base_id(key.get())) {
    case EVP_PKEY_ED25519:
      return PublicKey(std::move(key), SignatureKind::kEdDsa, std::move(id));
    case EVP_PKEY_EC:
      if (!IsP256(key.get())) break;
      return PublicKey(std::move(key), SignatureKind::kEs256, std::move(id));
    case EVP_PKEY_RSA: {
      const int bits = EVP_PKEY_get_bits(key.get());
      if (bits < kLeastRsaBits || bits > kMostRsaBits) {
        return absl::InvalidArgumentError(absl::StrCat("an RSA key of ", bits, " bits; expected ",
                                                       kLeastRsaBits, " to ", kMostRsaBits));
      }
      return PublicKey(std::move(key), SignatureKind::kRs256, std::move(id));
    }
    default:
      break;
  }
  return absl::InvalidArgumentError("expected a key of RSA, of the curve P-256 or of Ed25519");
}

bool PublicKey::Signed(absl::string_view text, absl::string_view signature) const {
  const std::string der = kind_ == SignatureKind::kEs256 ? DerOf(signature) : "";
  const absl::string_view given = kind_ == SignatureKind::kEs256 ? der : signature;
  const EVP_MD* digest = kind_ == SignatureKind::kEdDsa ? nullptr : EVP_sha256();
  const std::unique_ptr<EVP_MD_CTX, OpenSslFree> context(EVP_MD_CTX_new());
  const bool is_signed =
      EVP_DigestVerifyInit(context.get(), nullptr, digest, nullptr, key_.get()) == 1 &&
      EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(given.data()),
                       given.size(), reinterpret_cast<const unsigned char*>(text.data()),
                       text.size()) == 1;
  ERR_clear_error();
  return is_signed;
}

absl::StatusOr<std::vector<PublicKey>> ReadPublicKeys(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{");
  absl::StatusOr<std::vector<PublicKey>> keys = is_json ? KeysInJson(text) : KeysInPem(text);
  if (keys.ok() && keys->empty()) {
    keys = absl::InvalidArgumentError(
        is_json ? "holds no key for RS256, ES256 or EdDSA"
                : "expected public keys in PEM (-----BEGIN PUBLIC KEY-----) or a JSON Web Key Set");
  }
  if (keys.ok() && keys->size() > kMaxKeys) {
    keys = absl::InvalidArgumentError(absl::StrCat("more than ", kMaxKeys, " keys"));
  }
  if (keys.ok()) return keys;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", keys.status().message()));
}

}  // namespace bucketd
