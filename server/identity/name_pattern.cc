#include "server/identity/name_pattern.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bucketd {
namespace {

constexpr absl::string_view kUri = "URI:", kDns = "DNS:", kToken = "JWT:";
constexpr size_t kMaxPatternBytes = 2048;

absl::Status Refused(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 200), "\": ", why));
}

// Where the part begins in which a '*' may stand; npos: nowhere.
size_t FreePart(absl::string_view text) {
  if (absl::StartsWith(text, kUri)) {
    const size_t authority = text.find("://");
    return authority == absl::string_view::npos ? text.find(':', kUri.size())
                                                : text.find('/', authority + 3);
  }
  return text.find('/');  // behind a token's issuer
}

bool StarsStandRight(absl::string_view text) {
  const size_t first = text.find('*'), last = text.rfind('*');
  if (first == absl::string_view::npos) return true;
  if (!absl::StartsWith(text, kDns)) return FreePart(text) < first;
  return std::count(text.begin() + static_cast<std::ptrdiff_t>(last), text.end(), '.') >= 2;
}

// '*' is one character or more. Linear but for the last star seen, as globs are.
bool Glob(absl::string_view pattern, absl::string_view name, char separator) {
  size_t p = 0, n = 0;
  size_t star = absl::string_view::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      if (name[n] == separator) return false;
      star = p++;
      from = ++n;  // the one character that it has to stand for
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos && name[from] != separator) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  return p == pattern.size();
}

}  // namespace

NamePattern::NamePattern(std::string text, char separator)
    : text_(std::move(text)), separator_(separator), exact_(!absl::StrContains(text_, '*')) {}

std::string NamePattern::Canonical(absl::string_view name) {
  if (!absl::StartsWith(name, kDns)) return std::string(name);
  return absl::StrCat(kDns, absl::AsciiStrToLower(name.substr(kDns.size())));
}

absl::StatusOr<NamePattern> NamePattern::Parse(absl::string_view text) {
  const bool known = absl::StartsWith(text, kUri) || absl::StartsWith(text, kDns) ||
                     absl::StartsWith(text, kToken);
  if (!known || text.size() == kUri.size()) {
    return Refused(text,
                   "expected a name with its kind, e.g. \"URI:spiffe://example.org/train/*\", "
                   "\"DNS:*.train.example.org\" or \"JWT:ISSUER/SUBJECT\"");
  }
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
  if (!plain || text.size() > kMaxPatternBytes) {
    return Refused(text, absl::StrCat("expected printable ASCII without spaces, at most ",
                                      kMaxPatternBytes, " bytes"));
  }
  if (absl::StartsWith(text, kToken) && !absl::StrContains(text, '/')) {
    return Refused(text, "expected the name of a [[issuer]], a slash and the token's subject");
  }
  if (absl::StrContains(text, "**")) {
    return Refused(text, "one * stands for any characters of one part; two of them mean no more");
  }
  if (!StarsStandRight(text)) {
    return Refused(text,
                   "a * may not stand in the scheme and authority of a URI, in the last two labels "
                   "of a DNS name or in a token's issuer");
  }
  return NamePattern(Canonical(text), absl::StartsWith(text, kDns) ? '.' : '/');
}

std::string NamePattern::issuer() const {
  if (!absl::StartsWith(text_, kToken)) return "";
  return text_.substr(kToken.size(), text_.find('/') - kToken.size());
}

bool NamePattern::Fits(absl::string_view name) const {
  return Glob(text_, Canonical(name), separator_);
}

}  // namespace bucketd
