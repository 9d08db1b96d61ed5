#include "tests/server/tokens.h"

#include <array>
#include <functional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>

namespace bucketd {
namespace {

EVP_PKEY* Make(Issuing::Key kind) {
  switch (kind) {
    case Issuing::Key::kRsa:
      return EVP_PKEY_Q_keygen(nullptr, nullptr, "RSA", size_t{2048});
    case Issuing::Key::kShortRsa:
      return EVP_PKEY_Q_keygen(nullptr, nullptr, "RSA", size_t{1024});
    case Issuing::Key::kP256:
      return EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256");
    case Issuing::Key::kP384:
      return EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-384");
    case Issuing::Key::kEd25519:
      return EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  }
  return nullptr;
}

std::string Written(const std::function<void(BIO*)>& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  write(bio.get());
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

// R and S side by side.
std::string Plain(const std::string& der) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(der.data());
  ECDSA_SIG* numbers = d2i_ECDSA_SIG(nullptr, &bytes, static_cast<long>(der.size()));
  std::array<unsigned char, 64> plain{};
  BN_bn2binpad(ECDSA_SIG_get0_r(numbers), plain.data(), 32);
  BN_bn2binpad(ECDSA_SIG_get0_s(numbers), plain.data() + 32, 32);
  ECDSA_SIG_free(numbers);
  return std::string(reinterpret_cast<const char*>(plain.data()), plain.size());
}

const unsigned char* Unsigned(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string Unsealed(absl::string_view header, absl::string_view claims) {
  return absl::StrCat(Base64Url(header), ".", Base64Url(claims));
}

}  // namespace

std::string Base64Url(absl::string_view bytes) { return absl::WebSafeBase64Escape(bytes); }

Issuing::Issuing(Key key) : kind_(key), key_(Make(key), EVP_PKEY_free) {}

std::string Issuing::Pem() const {
  return Written([&](BIO* bio) { PEM_write_bio_PUBKEY(bio, key_.get()); });
}

std::string Issuing::PrivatePem() const {
  return Written([&](BIO* bio) {
    PEM_write_bio_PrivateKey(bio, key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

std::string Issuing::Number(const char* parameter) const {
  BIGNUM* number = nullptr;
  EVP_PKEY_get_bn_param(key_.get(), parameter, &number);
  const bool is_coordinate = kind_ == Key::kP256 || kind_ == Key::kP384;
  const int size = is_coordinate ? (EVP_PKEY_get_bits(key_.get()) + 7) / 8 : BN_num_bytes(number);
  std::string bytes(static_cast<size_t>(size), '\0');
  BN_bn2binpad(number, reinterpret_cast<unsigned char*>(bytes.data()), size);
  BN_free(number);
  return Base64Url(bytes);
}

std::string Issuing::Jwk(absl::string_view more) const {
  switch (kind_) {
    case Key::kRsa:
    case Key::kShortRsa:
      return absl::StrCat(R"({"kty":"RSA","n":")", Number(OSSL_PKEY_PARAM_RSA_N), R"(","e":")",
                          Number(OSSL_PKEY_PARAM_RSA_E), "\"", more, "}");
    case Key::kP256:
    case Key::kP384:
      return absl::StrCat(R"({"kty":"EC","crv":")", kind_ == Key::kP256 ? "P-256" : "P-384",
                          R"(","x":")", Number(OSSL_PKEY_PARAM_EC_PUB_X), R"(","y":")",
                          Number(OSSL_PKEY_PARAM_EC_PUB_Y), "\"", more, "}");
    case Key::kEd25519:
      break;
  }
  std::string raw(32, '\0');
  size_t size = raw.size();
  EVP_PKEY_get_raw_public_key(key_.get(), reinterpret_cast<unsigned char*>(raw.data()), &size);
  return absl::StrCat(R"({"kty":"OKP","crv":"Ed25519","x":")", Base64Url(raw), "\"", more, "}");
}

std::string Issuing::Token(absl::string_view claims, absl::string_view more) const {
  const char* algorithm = kind_ == Key::kRsa || kind_ == Key::kShortRsa ? "RS256"
                          : kind_ == Key::kEd25519                      ? "EdDSA"
                                                                        : "ES256";
  return TokenWithHeader(absl::StrCat(R"({"alg":")", algorithm, R"(","typ":"JWT")", more, "}"),
                         claims);
}

std::string Issuing::TokenWithHeader(absl::string_view header, absl::string_view claims) const {
  const std::string text = Unsealed(header, claims);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_DigestSignInit(context.get(), nullptr, kind_ == Key::kEd25519 ? nullptr : EVP_sha256(),
                     nullptr, key_.get());
  std::vector<unsigned char> signature(2048);
  size_t size = signature.size();
  EVP_DigestSign(context.get(), signature.data(), &size, Unsigned(text), text.size());
  std::string bytes(reinterpret_cast<const char*>(signature.data()), size);
  if (kind_ == Key::kP256) bytes = Plain(bytes);
  return absl::StrCat(text, ".", Base64Url(bytes));
}

std::string HmacToken(absl::string_view secret, absl::string_view claims) {
  const std::string text = Unsealed(R"({"alg":"HS256"})", claims);
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), Unsigned(text), text.size(),
       mac.data(), &size);
  return absl::StrCat(text, ".",
                      Base64Url({reinterpret_cast<const char*>(mac.data()), size_t{size}}));
}

}  // namespace bucketd
