#include "server/identity/json_web_key.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include "passes/base/status_macros.h"
#include "server/identity/openssl_free.h"

namespace bucketd {
namespace {

using Json = nlohmann::json;
using KeyPtr = std::shared_ptr<EVP_PKEY>;

constexpr size_t kCoordinateBytes = 32;  // of P-256, and an Ed25519 key's

using NumberPtr = std::unique_ptr<BIGNUM, OpenSslFree>;
using BuilderPtr = std::unique_ptr<OSSL_PARAM_BLD, OpenSslFree>;

std::string TextOf(const Json& key, const char* field) {
  const auto found = key.find(field);
  return found != key.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::Status Damaged(const char* field) {
  return absl::InvalidArgumentError(
      absl::StrCat("its \"", field, "\" is missing or no number in base64 for URLs"));
}

absl::StatusOr<std::string> BytesOf(const Json& key, const char* field) {
  std::string bytes;
  if (!FromBase64Url(TextOf(key, field), &bytes) || bytes.empty()) return Damaged(field);
  return bytes;
}

const unsigned char* Unsigned(const std::string& bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

NumberPtr NumberOf(const std::string& bytes) {
  return NumberPtr(BN_bin2bn(Unsigned(bytes), static_cast<int>(bytes.size()), nullptr));
}

// Null where the numbers make no key.
KeyPtr KeyFrom(const char* type, OSSL_PARAM_BLD* builder) {
  const std::unique_ptr<OSSL_PARAM, OpenSslFree> params(OSSL_PARAM_BLD_to_param(builder));
  const std::unique_ptr<EVP_PKEY_CTX, OpenSslFree> context(
      EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    return nullptr;
  }
  return KeyPtr(key, EVP_PKEY_free);
}

absl::StatusOr<KeyPtr> RsaKey(const Json& key) {
  ASSIGN_OR_RETURN(const std::string modulus, BytesOf(key, "n"));
  ASSIGN_OR_RETURN(const std::string exponent, BytesOf(key, "e"));
  const NumberPtr n = NumberOf(modulus), e = NumberOf(exponent);
  const BuilderPtr builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, n.get());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, e.get());
  return KeyFrom("RSA", builder.get());
}

absl::StatusOr<KeyPtr> EcKey(const Json& key) {
  ASSIGN_OR_RETURN(const std::string x, BytesOf(key, "x"));
  ASSIGN_OR_RETURN(const std::string y, BytesOf(key, "y"));
  if (x.size() != kCoordinateBytes) return Damaged("x");
  if (y.size() != kCoordinateBytes) return Damaged("y");
  const std::string point = absl::StrCat("\x04", x, y);
  const BuilderPtr builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0);
  OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                   point.size());
  return KeyFrom("EC", builder.get());
}

absl::StatusOr<KeyPtr> EdKey(const Json& key) {
  ASSIGN_OR_RETURN(const std::string x, BytesOf(key, "x"));
  return KeyPtr(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, Unsigned(x), x.size()),
                EVP_PKEY_free);
}

struct Kind {
  const char *kty, *crv, *alg;
  absl::StatusOr<KeyPtr> (*read)(const Json& key);
};
constexpr Kind kKinds[] = {{"RSA", "", "RS256", RsaKey},
                           {"EC", "P-256", "ES256", EcKey},
                           {"OKP", "Ed25519", "EdDSA", EdKey}};

// Null: a key of another kind or for another end.
const Kind* KindOf(const Json& key) {
  const std::string kty = TextOf(key, "kty"), crv = TextOf(key, "crv"), use = TextOf(key, "use"),
                    alg = TextOf(key, "alg");
  if (!use.empty() && use != "sig") return nullptr;
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) {
    return kty == kind.kty && crv == kind.crv && (alg.empty() || alg == kind.alg);
  });
  return found == std::end(kKinds) ? nullptr : found;
}

absl::StatusOr<PublicKey> ReadKey(const Kind& kind, const Json& json) {
  ASSIGN_OR_RETURN(KeyPtr key, kind.read(json));
  ERR_clear_error();
  if (key == nullptr) return absl::InvalidArgumentError("its numbers are no key");
  return PublicKey::Of(std::move(key), TextOf(json, "kid"));
}

}  // namespace

bool FromBase64Url(absl::string_view text, std::string* bytes) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  });
  return plain && absl::WebSafeBase64Unescape(text, bytes);
}

absl::StatusOr<std::vector<PublicKey>> KeysInJson(absl::string_view text) {
  const Json set = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  const auto list = set.is_object() ? set.find("keys") : set.end();
  if (!set.is_object() || list == set.end() || !list->is_array()) {
    return absl::InvalidArgumentError("expected a JSON Web Key Set: {\"keys\": [...]}");
  }
  std::vector<PublicKey> keys;
  size_t number = 0;
  for (const Json& json : *list) {
    const std::string where = absl::StrCat("key ", ++number, ": ");
    if (!json.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(where, "expected an object"));
    }
    if (json.contains("d") || TextOf(json, "kty") == "oct") {
      return absl::InvalidArgumentError(absl::StrCat(
          where, "it is private or shared: whoever reads this file could sign tokens with it"));
    }
    const Kind* kind = KindOf(json);
    if (kind == nullptr) continue;
    absl::StatusOr<PublicKey> key = ReadKey(*kind, json);
    if (!key.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(where, key.status().message()));
    }
    keys.push_back(*std::move(key));
  }
  return keys;
}

}  // namespace bucketd
