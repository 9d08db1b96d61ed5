#include "passes/cost/measured_link.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

constexpr size_t kMaxLinkName = 64;
constexpr int32_t kMaxGroup = 1 << 20;

absl::Status CheckFigure(const MeasuredLink& link, absl::string_view name, double value, double low,
                         double high) {
  if (std::isfinite(value) && value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("links: %s: %s is %g, expected %g to %g",
                                                    Describe(link.of), name, value, low, high));
}

absl::Status CheckRow(const MeasuredLink& link) {
  const absl::Status named = Validate(link.of);
  if (!named.ok()) return absl::InvalidArgumentError(absl::StrCat("links: ", named.message()));
  RETURN_IF_ERROR(CheckFigure(link, "alpha_us", link.alpha_us, 0.0, 1e6));
  RETURN_IF_ERROR(CheckFigure(link, "busbw_bytes_per_s", link.busbw_bytes_per_s, 1e3, 1e21));
  RETURN_IF_ERROR(CheckFigure(link, "error", link.error, 0.0, 1e9));
  RETURN_IF_ERROR(CheckFigure(link, "samples", link.samples, 0.0, 1e9));
  return CheckFigure(link, "reporters", link.reporters, 0.0, 1e9);
}

}  // namespace

std::string Describe(const LinkClass& of) {
  return absl::StrCat(Name(of.kind), " ", Name(of.dtype), " over ", of.group_size, " ranks, ",
                      of.ranks_per_node, " a node",
                      of.link_class.empty() ? "" : absl::StrCat(", link ", of.link_class));
}

absl::Status Validate(const LinkClass& of) {
  const bool known = IsKnown(of.kind) && of.dtype > DType::kUnspecified && of.dtype <= DType::kC128;
  if (!known) return absl::InvalidArgumentError("unknown kind of collective, or unknown dtype");
  if (of.group_size < 2 || of.group_size > kMaxGroup) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_size is ", of.group_size, ", expected 2 to ", kMaxGroup));
  }
  if (of.ranks_per_node < 1 || of.ranks_per_node > of.group_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks_per_node is ", of.ranks_per_node, ", expected 1 to ", of.group_size));
  }
  const bool printable = std::all_of(of.link_class.begin(), of.link_class.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (of.link_class.size() > kMaxLinkName || !printable) {
    return absl::InvalidArgumentError(absl::StrCat("link_class: expected up to ", kMaxLinkName,
                                                   " printable ASCII characters, no spaces"));
  }
  return absl::OkStatus();
}

int32_t RanksPerNode(int32_t group_size, int32_t stated) {
  return stated <= 0 ? group_size : std::min(stated, group_size);
}

absl::Status ValidateLinks(absl::Span<const MeasuredLink> links) {
  if (links.size() > kMaxMeasuredLinks) {
    return absl::InvalidArgumentError(
        absl::StrCat("links: ", links.size(), " rows, expected at most ", kMaxMeasuredLinks));
  }
  for (size_t i = 0; i < links.size(); ++i) {
    RETURN_IF_ERROR(CheckRow(links[i]));
    if (i > 0 && !(links[i - 1].of < links[i].of)) {
      return absl::InvalidArgumentError(absl::StrCat("links: ", Describe(links[i].of),
                                                     ": expected ascending classes, each once"));
    }
  }
  return absl::OkStatus();
}

const MeasuredLink* FindLink(absl::Span<const MeasuredLink> links, const LinkClass& of) {
  const auto before = [](const MeasuredLink& link, const LinkClass& c) { return link.of < c; };
  auto at = std::lower_bound(links.begin(), links.end(), of, before);
  if (at != links.end() && at->of == of) return &*at;
  // dtype is compared last, so the rows of one class stand together.
  LinkClass any = of;
  any.dtype = DType::kUnspecified;
  at = std::lower_bound(links.begin(), links.end(), any, before);
  if (at == links.end()) return nullptr;
  any.dtype = at->of.dtype;
  return at->of == any ? &*at : nullptr;
}

}  // namespace bucketd
