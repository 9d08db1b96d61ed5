// Every option by name and as text. Command lines, sweeps, the wire's settings and plan keys all go
// by this table: an option is one field of PlanOptions and one row here.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/pass/options.h"

namespace bucketd {

struct OptionInfo {
  absl::string_view name;
  absl::string_view values;  // what the text may be, for people: "on | off", "MB[,MB...] | auto"
  absl::string_view help;
  absl::string_view group;  // of modes that read it, for help texts
  bool has_field;           // of its own in bucketd.v1.PlanOptions; the others travel as settings
  absl::Status (*set)(PlanOptions&, absl::string_view text);
  std::string (*print)(const PlanOptions&);  // set(print()) changes nothing
};

// In the order of help texts.
absl::Span<const OptionInfo> AllOptions();
// nullptr if there is none.
const OptionInfo* FindOption(absl::string_view name);

// INVALID_ARGUMENT: an unknown name lists the known ones; a bad value says what was expected.
// Relations between options are PlanOptions::Validate()'s.
absl::Status SetOption(PlanOptions& options, absl::string_view name, absl::string_view text);

// What was asked for in vain: options away from their default that the mode does not read, a
// sentence each that names the modes that do.
std::vector<std::string> UnreadOptions(const PlanOptions& options);

}  // namespace bucketd
