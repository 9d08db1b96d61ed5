// Text tables for terminals and logs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace bucketd {

// Columns are as wide as their widest cell; the last one is not padded. Not thread-safe.
class Table {
 public:
  // `sides` has a letter a column, to which its cells keep: l(eft) or r(ight).
  Table(absl::string_view sides, std::vector<std::string> titles)
      : sides_(sides), titles_(std::move(titles)) {}
  // Missing cells are empty. REQUIRES: no more cells than columns.
  void AddRow(std::vector<std::string> cells) {
    cells.resize(titles_.size());
    rows_.push_back(std::move(cells));
  }
  // Title line, a rule, the rows; each line ends in a newline.
  std::string Text() const;

 private:
  const std::string sides_;
  const std::vector<std::string> titles_;
  std::vector<std::vector<std::string>> rows_;
};

// "1,234,567".
std::string WithThousands(int64_t value);
// "12.3 MiB", with as many digits as help: below 10 two decimals, below 100 one. A hundred MiB and
// more in whole ones.
std::string Mib(int64_t bytes);
// "0.123 ms", "12.345 ms"; from a second on "1.234 s".
std::string Duration(int64_t ps);
// `a` in parts of `b`, of at least one.
double Ratio(int64_t a, int64_t b);
// "-11.2 %", "+0.0 %"; "" if there is nothing to compare with.
std::string Change(int64_t now, int64_t before);

}  // namespace bucketd
