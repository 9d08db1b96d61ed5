// The text that names units by hand.
//
//   tok_embeddings,layers.[0-31],norm+output
//
// Entries are separated by commas, each is one unit. `a+b` puts two modules into one. A component
// may hold one range [lo-hi], both ends included: one entry for each value. A component `*` is any
// one component: one entry for each match, in order of first use in the graph. Nothing else is
// special: these are globs, and signs of regular expressions are refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bucketd {

struct Entry {
  std::string name;                // as people wrote it, expanded; a region's name
  std::vector<std::string> paths;  // one or more; "*" components stand until ExpandWildcards()
  int32_t distance = -1;           // only where allowed: `layers.3:2`; -1: not given
  bool region = false;
};

// More paths than this in one list are refused, and more bytes of paths, expanded: a list comes
// with every request for a plan.
inline constexpr int64_t kMaxEntries = 65536;
inline constexpr int64_t kMaxEntryBytes = int64_t{16} << 20;
// Of one path: no module lies that deep, and a path is looked up component by component.
inline constexpr int32_t kMaxComponents = 256;

// INVALID_ARGUMENT names the entry: empty component, bad or reversed range, a range or `*`
// together with `+` outside of a region, a name or an expansion that comes twice, a list beyond the
// limits above.
// Regions are read where distances are not.
absl::StatusOr<std::vector<Entry>> ParseEntries(absl::string_view text,
                                                bool allow_distances = false);

// A component that is a number: decimal digits, nine at most.
bool ParseNumber(absl::string_view text, int32_t& value);

// `labels`: FQNs in order of first use. INVALID_ARGUMENT if two entries then say the same. An
// entry without a match stays as it is.
absl::StatusOr<std::vector<Entry>> ExpandWildcards(std::vector<Entry> entries,
                                                   absl::Span<const absl::string_view> labels);

// True if `prefix` is `path` or one of its leading runs of components: layers.1 holds layers.1.wq,
// not layers.10.
bool Holds(absl::string_view prefix, absl::string_view path);

}  // namespace bucketd
