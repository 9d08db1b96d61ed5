#include "client/cli/flags.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command_line.h"

#include "passes/base/words.h"

namespace bucketd {
namespace {

std::string DidYouMean(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

// What CLI11 says of words that it did not expect names all of them, the last first.
std::string AboutExtra(CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  if (absl::StartsWith(word, "-")) {
    for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
    return absl::StrCat("there is no flag ", word, DidYouMean(word, known));
  }
  for (const CLI::App* command : app.get_subcommands(std::function<bool(CLI::App*)>())) {
    known.push_back(command->get_name());
  }
  if (known.empty()) return absl::StrCat("unexpected argument \"", word, "\"");
  return absl::StrCat("there is no command \"", word, "\"", DidYouMean(word, known));
}

// Of an option that the environment gave its value: the message, which begins with the option's
// name, with the variable, which is what has to change.
std::string WithVariable(const CLI::App& app, const std::string& what) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string variable = option->get_envname();
    const char* const value = variable.empty() ? nullptr : std::getenv(variable.c_str());
    const bool speaks = value != nullptr && option->results() == std::vector<std::string>{value};
    if (!speaks || !absl::StartsWith(what, option->get_name())) continue;
    return absl::StrCat(variable, ", which stands for ", what);
  }
  return what;
}

int UsageError(CLI::App& app, const CLI::ParseError& error) {
  CLI::App* at = &app;
  std::string name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    absl::StrAppend(&name, " ", at->get_name());
  }
  const std::vector<std::string> extras = at->remaining();
  const std::string what =
      extras.empty() ? WithVariable(*at, error.what()) : AboutExtra(*at, extras.front());
  std::fprintf(stderr, "%s: %s\nSee %s --help.\n", name.c_str(), what.c_str(), name.c_str());
  return kUsage;
}

// How to exit where all else went well: what a full disk or a closed pipe did not take is no
// result.
int Written(const std::string& name) {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return kDone;
  std::fprintf(stderr, "%s: stdout: cannot be written%s%s\n", name.c_str(), flushed ? "" : ": ",
               flushed ? "" : std::strerror(errno));
  return kUnavailable;
}

}  // namespace

Flag Flag::TypeName(const std::string& name) const { return Flag(option_->type_name(name)); }
Flag Flag::Group(const std::string& name) const { return Flag(option_->group(name)); }
Flag Flag::Hidden() const { return Flag(option_->group("")); }
Flag Flag::ShowDefault() const { return Flag(option_->capture_default_str()); }
Flag Flag::Required() const { return Flag(option_->required()); }
Flag Flag::Env(const std::string& variable) const { return Flag(option_->envname(variable)); }
Flag Flag::EnvWith(const std::string& variable, const Flag& other) const {
  // CLI11 asks the environment once it has read the command line.
  const auto speak = [option = option_, variable](const std::string&) {
    option->envname(variable);
  };
  other.option_->each(speak)->trigger_on_parse();
  return Flag(
      option_->description(absl::StrCat(option_->get_description(), " (Env:", variable, ")")));
}
Flag Flag::InRange(int64_t lowest, int64_t highest) const {
  return Flag(option_->check(CLI::Range(lowest, highest)));
}
Flag Flag::Checked(std::function<std::string(const std::string& value)> wrong) const {
  return Flag(option_->check(std::move(wrong)));
}
Flag Flag::File() const { return Flag(option_->check(CLI::ExistingFile)); }
Flag Flag::OneValueEach() const { return Flag(option_->allow_extra_args(false)); }
Flag Flag::TakeLast() const { return Flag(option_->take_last()); }
Flag Flag::Needs(const std::string& other) const { return Flag(option_->needs(other)); }
Flag Flag::Excludes(std::initializer_list<const char*> others) const {
  for (const char* other : others) option_->excludes(other);
  return *this;
}

Flag Command::AddOption(const std::string& name, std::string& value,
                        const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Command::AddOption(const std::string& name, int& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Command::AddOption(const std::string& name, int64_t& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Command::AddOption(const std::string& name, double& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Command::AddOption(const std::string& name, std::vector<std::string>& values,
                        const std::string& help) const {
  return Flag(app_->add_option(name, values, help));
}
// As a function: CLI11 takes "" for no value.
Flag Command::AddOption(const std::string& name, std::optional<std::string>& value,
                        const std::string& help) const {
  return AddOption(
      name, [&value](const std::string& text) { value = text; }, help);
}
Flag Command::AddOption(const std::string& name, std::function<void(const std::string&)> take,
                        const std::string& help) const {
  return Flag(app_->add_option_function<std::string>(name, std::move(take), help));
}
Flag Command::AddFlag(const std::string& name, bool& value, const std::string& help) const {
  return Flag(app_->add_flag(name, value, help));
}

Command Command::AddCommand(const std::string& name, const std::string& about) const {
  app_->require_subcommand(1);
  CLI::App* added = app_->add_subcommand(name, about);
  added->group(heading_.empty() ? "Subcommands" : heading_);
  return Command(added, exit_);
}
Command Command::Under(const std::string& heading) const {
  Command command = *this;
  command.heading_ = heading;
  return command;
}
void Command::Footer(const std::string& text) const { app_->footer(text); }
void Command::Does(std::function<int()> run) const {
  app_->callback([exit = exit_, run = std::move(run)] { *exit = run(); });
  // With this CLI11 asks the environment for a command that is named, without it for all commands.
  app_->parse_complete_callback([] {});
}

CommandLine::CommandLine(const std::string& about, const std::string& name)
    : app_(std::make_unique<CLI::App>(about, name)) {
  app_->set_version_flag("--version", name + " " BUCKETD_VERSION);
}
CommandLine::~CommandLine() = default;

int CommandLine::Run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& help) {
    exit_ = app_->exit(help);
  } catch (const CLI::ParseError& error) {
    return UsageError(*app_, error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app_->get_name().c_str(), error.what());
    return kUnavailable;
  }
  return exit_ == kDone ? Written(app_->get_name()) : exit_;
}

}  // namespace bucketd
