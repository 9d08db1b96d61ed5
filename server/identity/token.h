// Bearer tokens: JSON Web Tokens (RFC 7519), signed with RS256, ES256 or EdDSA, and checked against
// keys that are here. Nobody is asked, and nothing that a token names is fetched or opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "server/identity/issuer.h"

namespace bucketd {

// What of a token counts, once it was found to be signed.
struct Token {
  std::string name;  // "JWT:ISSUER/SUBJECT"
  int64_t not_before_s = 0, expires_s = 0;
};

inline constexpr size_t kMaxTokenBytes = 7168;  // gRPC takes 8 KiB of metadata in all
inline constexpr int64_t kTokenLeewaySeconds = 60;

// INVALID_ARGUMENT says what is wrong with it, and nothing of it that would be of use to others:
// its form, its size, an algorithm that its issuer's key does not have, an issuer that nobody
// knows, another audience, no end, no subject.
absl::StatusOr<Token> ReadToken(absl::string_view text, absl::Span<const Issuer> issuers);

// INVALID_ARGUMENT for one that has expired or is not valid yet, give or take the leeway.
absl::Status CheckIsCurrent(const Token& token, int64_t now_s);

}  // namespace bucketd
