#include "client/ctl/plan_flags.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/option_table.h"

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

// One FQN a line; empty lines and lines that begin with # are skipped.
absl::StatusOr<std::vector<std::string>> ReadParamOrder(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{256} << 20;
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("--param-order: ", text.status().message()));
  }
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const absl::string_view name = absl::StripAsciiWhitespace(line);
    if (!name.empty() && name.front() != '#') names.emplace_back(name);
  }
  return names;
}

// Those have a flag that says the same in a better way.
bool HasOwnFlag(absl::string_view option) {
  return option == "memory_limit_ppm" || option == "memory_limit_bytes" ||
         option == "parameter_order";
}

std::string FlagOf(absl::string_view option) {
  return absl::StrCat("--", absl::StrReplaceAll(option, {{"_", "-"}}));
}

void AddOption(const Command& command, const OptionInfo& option, absl::string_view mode_unsaid,
               PlanFlags& flags) {
  const std::string flag = FlagOf(option.name);
  std::string help(option.help);
  if (option.name == "mode") {
    for (const ModeInfo& mode : AllModes()) {
      absl::StrAppend(&help, help == option.help ? ": " : ", ", mode.name);
    }
  }
  const std::string standard =
      option.name == "mode" ? std::string(mode_unsaid) : option.print(PlanOptions{});
  if (!standard.empty()) absl::StrAppend(&help, " [", standard, "]");
  const auto take = [&flags, name = std::string(option.name)](const std::string& text) {
    flags.set.emplace_back(name, text);
  };
  command.AddOption(flag, take, help)
      .TypeName(std::string(option.values))
      .Group(option.group == "every mode" ? "Options" : absl::StrCat("Modes ", option.group));
}

}  // namespace

absl::Status AsUsage(const absl::Status& status) {
  return status.ok() ? status : absl::OutOfRangeError(status.message());
}

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

void AddPlanFlags(const Command& command, PlanFlags& flags, absl::string_view mode) {
  AddGraphArgument(command, flags.graph);
  AddProfileFlag(command, flags.costs.profile);
  command.AddOption("--memory-limit", flags.memory_limit,
                    "peak memory a plan may reach: 1.05x, +5%, 38GiB, bytes [1.05x]");
  command.AddOption("--param-order", flags.param_order,
                    "file with the parameters' names in eager registration order, one a line");
  for (const OptionInfo& option : AllOptions()) {
    if (!HasOwnFlag(option.name)) AddOption(command, option, mode, flags);
  }
}

absl::StatusOr<PlanOptions> OptionsFrom(const PlanFlags& flags) {
  PlanOptions options;
  for (const auto& [name, text] : flags.set) {
    RETURN_IF_ERROR(AsUsage(SetOption(options, name, text)));
  }
  if (!flags.memory_limit.empty()) {
    RETURN_IF_ERROR(ParseMemoryLimit(flags.memory_limit, options));
  }
  if (!flags.param_order.empty()) {
    ASSIGN_OR_RETURN(options.parameter_order, ReadParamOrder(flags.param_order));
  }
  return options;
}

}  // namespace bucketd::ctl
