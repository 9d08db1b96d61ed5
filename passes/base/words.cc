#include "passes/base/words.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bucketd {
namespace {

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string BytesInWords(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return absl::StrFormat("%.2f GiB", value / (1 << 30));
  if (bytes >= 1 << 20) return absl::StrFormat("%.1f MiB", value / (1 << 20));
  if (bytes >= 1 << 10) return absl::StrFormat("%.1f KiB", value / (1 << 10));
  return absl::StrCat(bytes, " B");
}

std::string SpanInWords(int64_t milliseconds) {
  const int64_t ms = std::max<int64_t>(milliseconds, 0);
  const int64_t s = ms / 1000;
  if (s < 1) return absl::StrCat(ms, " ms");
  if (s < 60) return absl::StrCat(s, " s");
  if (s < 3600) return absl::StrCat(s / 60, " min ", s % 60, " s");
  if (s < 86'400) return absl::StrCat(s / 3600, " h ", s % 3600 / 60, " min");
  return absl::StrCat(s / 86'400, " d ", s % 86'400 / 3600, " h");
}

std::string RangesInWords(absl::Span<const uint32_t> ascending) {
  std::string out;
  for (size_t i = 0; i < ascending.size();) {
    size_t end = i;
    while (end + 1 < ascending.size() && ascending[end + 1] == ascending[end] + 1) ++end;
    absl::StrAppend(&out, out.empty() ? "" : ", ", ascending[i]);
    if (end > i) absl::StrAppend(&out, "-", ascending[end]);
    i = end + 1;
  }
  return out;
}

std::string ShareInWords(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string NearestName(const std::string& name, const std::vector<std::string>& known) {
  std::string nearest;
  // Two slips, or one in a short word; more is another word.
  size_t least = std::min<size_t>(3, name.size() / 2 + 1);
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace bucketd
