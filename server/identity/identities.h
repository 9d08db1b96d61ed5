// Who is who: the identities file, from a caller's names to its tenant and roles.
//
//   [[identity]]
//   names = ["URI:spiffe://example.org/train/*", "DNS:*.train.example.org"]   # name_pattern.h
//   tenant = "team-a"                                     # "*": any, as its messages say
//   roles = ["plan", "report"]
//
// The first entry in the file that one of the caller's names fits counts, and no other: what is
// special stands before what is general. Who signs tokens stands there, too (issuer.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "server/identity/issuer.h"
#include "server/identity/name_pattern.h"
#include "server/identity/roles.h"

namespace bucketd {

struct Identity {
  std::string tenant;       // "": the default one
  bool any_tenant = false;  // speaks for the tenant that its messages name
  RoleSet roles;
  int line = 0;  // of the file
};

class Identities {
 public:
  static constexpr int64_t kMaxFileBytes = int64_t{4} << 20;
  static constexpr size_t kMaxNames = 20'000;
  static constexpr size_t kMaxPatterns = 256;  // of them with '*', which are tried one by one

  // INVALID_ARGUMENT: every problem, one a line, as "PATH:LINE: what was expected". Keys of issuers
  // are read from their files.
  static absl::StatusOr<Identities> Parse(absl::string_view text, const std::string& path);
  static absl::StatusOr<Identities> Read(const std::string& path);

  // Null: none fits. `fits`: the name that did.
  const Identity* Find(absl::Span<const std::string> names, std::string* fits = nullptr) const;
  size_t size() const { return entries_.size(); }
  const std::vector<Issuer>& issuers() const { return issuers_; }
  // The others that it was made of: those of issuers' keys.
  std::vector<std::string> files() const;

 private:
  friend class IdentitiesReader;
  struct Glob {
    NamePattern pattern;
    size_t entry;
  };

  std::vector<Identity> entries_;
  absl::flat_hash_map<std::string, size_t> exact_;  // canonical name to the first entry that has it
  std::vector<Glob> globs_;                         // in the order of the file
  std::vector<Issuer> issuers_;
};

}  // namespace bucketd
