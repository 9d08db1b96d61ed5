#include "passes/base/digest.h"

#include <cstdlib>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <openssl/evp.h>

namespace bucketd {
namespace {

// OpenSSL fails here only without memory or without its own default provider; neither can be
// handled, and a wrong digest must never leave this file.
void Require(bool ok) {
  if (!ok) std::abort();
}

EVP_MD_CTX* Context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

Digest Sha256(absl::string_view bytes) {
  Sha256Stream stream;
  stream.Append(bytes);
  return stream.Finish();
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  Require(context_ != nullptr);
  Require(EVP_DigestInit_ex(Context(context_), EVP_sha256(), nullptr) == 1);
}

Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(Context(context_)); }

void Sha256Stream::Append(absl::string_view bytes) {
  Require(EVP_DigestUpdate(Context(context_), bytes.data(), bytes.size()) == 1);
}

Digest Sha256Stream::Finish() {
  Digest digest;
  unsigned int size = 0;
  Require(EVP_DigestFinal_ex(Context(context_), digest.data(), &size) == 1);
  Require(size == digest.size());
  return digest;
}

std::string ToHex(const Digest& digest) { return absl::BytesToHexString(AsBytes(digest)); }

absl::StatusOr<Digest> DigestFromHex(absl::string_view hex) {
  if (hex.size() != 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("digest: expected 64 hexadecimal digits, got ", hex.size(), " characters"));
  }
  const auto bad = absl::c_find_if_not(
      hex, [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); });
  if (bad != hex.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("digest: not a hexadecimal digit at position ", bad - hex.begin()));
  }
  return DigestFromBytes(absl::HexStringToBytes(hex));
}

absl::StatusOr<Digest> DigestFromBytes(absl::string_view bytes) {
  Digest digest;
  if (bytes.size() != digest.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("digest: expected ", digest.size(), " bytes, got ", bytes.size()));
  }
  std::memcpy(digest.data(), bytes.data(), digest.size());
  return digest;
}

absl::string_view AsBytes(const Digest& digest) {
  return absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size());
}

}  // namespace bucketd
