#include "passes/ir/text.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace bucketd {
namespace {

// Length of the well-formed, printable UTF-8 sequence at the front of `s`; 0 if there is none.
size_t SequenceLength(absl::string_view s) {
  const auto at = [&](size_t i) -> uint32_t {
    return i < s.size() ? static_cast<uint8_t>(s[i]) : 0;
  };
  const uint32_t lead = at(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  uint32_t code = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (at(i) & 0x3f);
  }
  static constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};  // 0x80..0x9f: control
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code >= kLeast[length] && code <= 0x10ffff && !surrogate ? length : 0;
}

}  // namespace

size_t FindUnprintable(absl::string_view s) {
  for (size_t i = 0; i < s.size();) {
    const size_t length = SequenceLength(s.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return absl::string_view::npos;
}

size_t FindControl(absl::string_view s) {
  for (size_t at = 0;; ++at) {
    const size_t bad = FindUnprintable(s.substr(at));
    if (bad == absl::string_view::npos) return bad;
    at += bad;
    if (s[at] != '\t' && s[at] != '\n' && s[at] != '\r') return at;
  }
}

std::string Printable(absl::string_view s) {
  constexpr size_t kMost = 80;
  return absl::StrCat(absl::CHexEscape(s.substr(0, kMost)), s.size() > kMost ? "..." : "");
}

}  // namespace bucketd
