// bucket-agent: runs buckets on the machine where it stands, and measures them.
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"

#include "gpu_agent/daemon/daemon_command.h"
#include "gpu_agent/run/command.h"
#include "passes/base/words.h"

namespace bucketd::agent {
namespace {

constexpr char kAbout[] =
    R"(bucket-agent runs the collectives of bucketing plans on this machine and measures them, so that
bucketd's next plans rest on what was measured here.

  bucket-agent calibrate --ranks 2 --profile-out here.json    what do collectives take here?
  bucket-agent daemon --help                                  meet other nodes' agents and stay
  bucket-agent replay --help                                  what one command does, with an example

Results go to stdout, messages to stderr. Exit codes: 0 done, 1 refused (an illegal plan, a payload
that came out wrong), 2 usage, 3 unavailable (a rank died, a file cannot be written).)";

// CLI11 itself only says that a command is missing.
std::string AboutExtra(CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands(std::function<bool(CLI::App*)>())) {
    known.push_back(command->get_name());
  }
  const std::string nearest = NearestName(word, known);
  return absl::StrCat("there is no command \"", word, "\"",
                      nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"));
}

int UsageError(CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> extras = app.remaining();
  const std::vector<CLI::App*> at = app.get_subcommands();
  const std::string name =
      at.empty() ? app.get_name() : absl::StrCat(app.get_name(), " ", at.front()->get_name());
  std::cerr << name << ": "
            << (at.empty() && !extras.empty() ? AboutExtra(app, extras.front()) : error.what())
            << "\nSee " << name << " --help.\n";
  return kUsage;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  CLI::App app{kAbout, "bucket-agent"};
  app.require_subcommand(1);
  int exit = kDone;
  AddCalibrateCommand(app, arguments, exit);
  AddReplayCommand(app, arguments, exit);
  AddDaemonCommand(app, exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error);
  } catch (const std::exception& error) {
    std::cerr << "bucket-agent: " << error.what() << "\n";
    return kUnavailable;
  }
  return exit;
}

}  // namespace
}  // namespace bucketd::agent

int main(int argc, char** argv) { return bucketd::agent::Main(argc, argv); }
