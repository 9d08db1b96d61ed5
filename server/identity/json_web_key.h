// JSON Web Keys (RFC 7517).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "server/identity/public_key.h"

namespace bucketd {

// The keys of a set that verify RS256, ES256 or EdDSA; others are left out. INVALID_ARGUMENT for
// what is no set, and for one with a key that is damaged, private or shared.
absl::StatusOr<std::vector<PublicKey>> KeysInJson(absl::string_view text);

// Base64 as tokens and keys have it: for URLs, without padding.
bool FromBase64Url(absl::string_view text, std::string* bytes);

}  // namespace bucketd
