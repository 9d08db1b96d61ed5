#include "client/ctl/memory_limit.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace bucketd::ctl {
namespace {

constexpr std::pair<absl::string_view, double> kUnits[] = {{"KiB", 1024.0},
                                                           {"MiB", 1024.0 * 1024.0},
                                                           {"GiB", 1024.0 * 1024.0 * 1024.0},
                                                           {"KB", 1e3},
                                                           {"MB", 1e6},
                                                           {"GB", 1e9},
                                                           {"B", 1.0},
                                                           {"", 1.0}};

// A plain decimal number, within what the options can hold.
bool Number(absl::string_view text, double& value) {
  return !text.empty() && text.find_first_not_of("0123456789.") == absl::string_view::npos &&
         absl::SimpleAtod(text, &value) && std::isfinite(value);
}

bool ParseBytes(absl::string_view text, double& bytes) {
  for (const auto& [unit, factor] : kUnits) {
    absl::string_view number = text;
    if (absl::ConsumeSuffix(&number, unit) && Number(number, bytes)) {
      bytes *= factor;
      return bytes >= 1.0 && bytes <= 1e18;
    }
  }
  return false;
}

}  // namespace

absl::Status ParseMemoryLimit(absl::string_view text, PlanOptions& options) {
  absl::string_view rest = text;
  double value = 0.0;
  bool is_share = false;
  if (absl::ConsumeSuffix(&rest, "x")) {
    is_share = Number(rest, value);
  } else if (absl::ConsumeSuffix(&rest, "%") && absl::ConsumePrefix(&rest, "+")) {
    is_share = Number(rest, value);
    value = 1.0 + value / 100.0;
  }
  if (is_share && value >= 1e-6 && value <= 1000.0) {
    options.memory_limit_ppm = std::llround(value * 1e6);
    options.memory_limit_bytes = 0;
    return absl::OkStatus();
  }
  if (!is_share && ParseBytes(text, value)) {
    options.memory_limit_bytes = std::llround(value);
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("--memory-limit: is \"", text,
                                            "\", expected a share of program order's peak (1.05x "
                                            "or +5%) or a size (38GiB, 4096MiB, bytes)"));
}

}  // namespace bucketd::ctl
