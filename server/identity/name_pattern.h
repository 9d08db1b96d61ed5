// Which names of callers a line of the identities file means.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bucketd {

// A caller's name is its kind and what follows: "URI:spiffe://example.org/train/llama" and
// "DNS:rank-3.train.example" from a certificate's subject alternative names, "JWT:ISSUER/SUBJECT"
// from a token.
//
// A pattern is a name in which '*' stands for one or more characters of one part: of a DNS name
// anything but a dot, of the others anything but a slash. It may not stand where it would hand over
// the choice of who vouches: not in the scheme and authority of a URI, not in the last two labels
// of a DNS name, not in a token's issuer. DNS names are compared without regard to case, others
// byte for byte.
class NamePattern {
 public:
  // INVALID_ARGUMENT says what was expected.
  static absl::StatusOr<NamePattern> Parse(absl::string_view text);

  bool Fits(absl::string_view name) const;
  // Without '*': fits the one name Canonical(text()).
  bool exact() const { return exact_; }
  const std::string& text() const { return text_; }  // canonical
  // Of a token's name; "": it is no token's.
  std::string issuer() const;

  // The form in which names are compared.
  static std::string Canonical(absl::string_view name);

 private:
  NamePattern(std::string text, char separator);
  std::string text_;
  char separator_;  // what a '*' does not reach over
  bool exact_;
};

}  // namespace bucketd
