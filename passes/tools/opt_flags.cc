#include "passes/tools/opt_flags.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/io/profile_json.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/option_table.h"

namespace bucketd {

absl::StatusOr<OptRequest> OptFlags::ToRequest() const {
  OptRequest request = given;
  request.print_diagnostics = !quiet;
  // Without a mode and without passes the plan is what came in, or program order.
  request.options.mode =
      mode.empty() ? (request.passes.empty() ? "none" : request.options.mode) : mode;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", setting, ": expected name=value; --list shows the names"));
    }
    const absl::Status status = SetOption(request.options, setting.substr(0, equals),
                                          absl::string_view(setting).substr(equals + 1));
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("--set ", setting, ": ", status.message()));
    }
  }
  ASSIGN_OR_RETURN(request.profile, FindProfile(profile));
  return request;
}

void AddOptFlags(CLI::App& app, OptFlags& flags) {
  app.add_option("FILE", flags.file,
                 "a graph as text (passes/text/TEXT_FORM.md) or a captured-graph file; -: stdin")
      ->capture_default_str();
  app.add_option("--mode", flags.mode, "plan as this mode does");
  app.add_option("--pass", flags.given.passes,
                 "run these passes instead, in this order, on the text's plan or program order")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--set", flags.settings,
                 "an option of the planner, name=value, as --list says; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--dump-after", flags.given.dump_after,
                 "write the plan after these passes too; all: after every one")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--show", flags.given.show,
                 absl::StrCat("write what the passes found out: ", absl::StrJoin(kOptShows, ", ")))
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--profile", flags.profile, "cost profile, by name or file")
      ->capture_default_str();
  app.add_flag("--graph", flags.given.print_graph,
               "write the graph before the plan; alone where nothing plans it");
  app.add_flag("--predict", flags.given.print_prediction,
               "write what the simulator says of the plan");
  app.add_flag("--quiet", flags.quiet, "leave out the plan's diagnostics");
  app.add_flag("--list", flags.list, "list passes, modes and options, and stop");
}

std::string OptTables() {
  std::string out = "Passes (--pass=a,b):\n";
  for (const PassInfo& pass : AllPasses()) {
    absl::StrAppendFormat(&out, "  %-22s %s\n", pass.name, pass.summary);
  }
  out += "\nModes (--mode=M):\n";
  for (const ModeInfo& mode : AllModes()) {
    absl::StrAppendFormat(&out, "  %-22s %s\n", mode.name, mode.summary);
    if (mode.passes.empty()) continue;
    absl::StrAppendFormat(&out, "  %-22s   %s\n", "", absl::StrJoin(mode.passes, ", "));
  }
  out +=
      "\nOptions (--set name=value). N is a whole number in digits alone; MB mebibytes with up to "
      "six\n"
      "decimals, 25 or 27.5, or bytes, 1000B; there is no limit only where \"none\" stands beside "
      "it:\n";
  const PlanOptions defaults;
  for (const OptionInfo& option : AllOptions()) {
    absl::StrAppendFormat(&out, "  %-26s %s  (%s; default \"%s\")\n", option.name, option.help,
                          option.values, option.print(defaults));
  }
  return out;
}

}  // namespace bucketd
