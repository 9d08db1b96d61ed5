#include "server/costs/cost_names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "server/base/errors.h"

namespace bucketd {
namespace {

constexpr char kLatest[] = "latest";
constexpr size_t kMaxName = 64;
constexpr size_t kMaxAbout = 1024;
constexpr size_t kMaxBy = 128;

absl::Status CheckText(absl::string_view field, absl::string_view text, size_t limit) {
  const bool readable = std::none_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  if (text.size() <= limit && readable) return absl::OkStatus();
  return MakeError(
      Reason::kProfileInvalid,
      absl::StrCat(field, ": expected at most ", limit, " bytes of text, one line"),
      {.limit = static_cast<int64_t>(limit), .actual = static_cast<int64_t>(text.size())});
}

std::string DefaultName(absl::string_view device_type) {
  return device_type == "cpu" ? "cpu_loopback" : "h100_nvlink";
}

}  // namespace

std::string ProfileId(const CostProfile& profile) {
  return absl::StrCat(profile.name, "@", profile.version);
}

ProfileSpec ParseProfileSpec(absl::string_view text, absl::string_view device_type) {
  ProfileSpec spec;
  const size_t at = text.find('@');
  const absl::string_view name = text.substr(0, at);
  spec.latest = at == absl::string_view::npos && name == kLatest;
  spec.name = name.empty() || spec.latest ? DefaultName(device_type) : std::string(name);
  if (at == absl::string_view::npos) return spec;
  const absl::string_view version = text.substr(at + 1);
  spec.version_text = std::string(version.empty() ? "?" : version);
  spec.latest = spec.version_text == kLatest;
  // One spelling a version: no sign, no spaces, no leading zero.
  const bool digits = std::all_of(spec.version_text.begin(), spec.version_text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  if (!digits || spec.version_text[0] == '0' ||
      !absl::SimpleAtoi(spec.version_text, &spec.version)) {
    spec.version = 0;
  }
  return spec;
}

absl::Status CheckProfileName(absl::string_view name) {
  const auto plain = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c));
  };
  const bool fits = !name.empty() && name.size() <= kMaxName && plain(name[0]) &&
                    std::all_of(name.begin(), name.end(), [&](char c) {
                      return plain(c) || c == '_' || c == '-' || c == '.';
                    });
  if (fits && name != kLatest) return absl::OkStatus();
  return MakeError(Reason::kProfileInvalid,
                   absl::StrCat("name: expected 1 to ", kMaxName,
                                " of a-z, 0-9, _, - and ., a letter or digit first, and not "
                                "\"latest\""));
}

absl::Status CheckProfileTexts(const CostProfile& profile, absl::string_view by) {
  const absl::Status about = CheckText("about", profile.about, kMaxAbout);
  return about.ok() ? CheckText("by", by, kMaxBy) : about;
}

}  // namespace bucketd
