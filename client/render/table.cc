#include "client/render/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bucketd {
namespace {

// Characters, not bytes: names may hold any UTF-8.
size_t Width(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

std::string Table::Text() const {
  std::vector<size_t> widths;
  for (const std::string& title : titles_) widths.push_back(Width(title));
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::vector<std::string> rule;
  for (const size_t width : widths) rule.emplace_back(width, '-');
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - Width(cells[i]), ' ');
      const bool right = sides_[i] == 'r';
      absl::StrAppend(&out, i == 0 ? "" : "  ", right ? padding : "", cells[i],
                      right ? "" : padding);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, out, "\n");
  };
  line(titles_);
  line(rule);
  for (const std::vector<std::string>& row : rows_) line(row);
  return text;
}

std::string WithThousands(int64_t value) {
  const std::string digits = absl::StrCat(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool after_a_digit = !text.empty() && text.back() != '-';
    if (after_a_digit && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string Mib(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1024.0 * 1024.0);
  const int decimals = mib < 10.0 ? 2 : mib < 100.0 ? 1 : 0;
  return absl::StrFormat("%.*f MiB", decimals, mib);
}

std::string Duration(int64_t ps) {
  if (ps >= 1'000'000'000'000) return absl::StrFormat("%.3f s", static_cast<double>(ps) * 1e-12);
  return absl::StrFormat("%.3f ms", static_cast<double>(ps) * 1e-9);
}

double Ratio(int64_t a, int64_t b) {
  return static_cast<double>(a) / static_cast<double>(std::max<int64_t>(1, b));
}

std::string Change(int64_t now, int64_t before) {
  if (before <= 0) return "";
  const double percent = 100.0 * (static_cast<double>(now) - static_cast<double>(before)) /
                         static_cast<double>(before);
  return absl::StrFormat("%+.1f %%", percent);
}

}  // namespace bucketd
