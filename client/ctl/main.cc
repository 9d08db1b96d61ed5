// bucketctl: plans captured graphs in this process, without a server, and shows what came out; asks
// and tells a running server.
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"

#include "passes/base/words.h"

namespace bucketd::ctl {
namespace {

constexpr char kAbout[] =
    R"(bucketctl plans which collectives of a captured training step share a bucket and when each runs,
shows why, and operates bucketd, the server that does the same for whole clusters.

  bucketctl plan step.bw.json.gz --trace-out step.trace.json   a first look, without a server
  bucketctl status                                             how is the server on this machine?
  bucketctl evict --help                                       what one command does, with examples

Captured graphs are files that PyTorch's client writes (proto/GRAPH.md). Results go to stdout,
messages to stderr; most commands take --json. Exit codes: 0 done, 1 refused (an illegal plan or
graph, or the server says no), 2 usage, 3 unavailable (nobody answers, a file cannot be written).)";

struct Group {
  const char* name;
  std::vector<void (*)(CLI::App&, int&)> commands;
};

const std::vector<Group>& Groups() {
  static const std::vector<Group> groups = {
      {"Graphs and plans in files, without a server",
       {AddPlanCommand, AddCompareCommand, AddExplainCommand, AddSimulateCommand, AddTraceCommand,
        AddDigestCommand, AddShowCommand, AddDiffCommand, AddKeyCommand}},
      {"A running server (--server ADDRESS, else BUCKETD_ADDRESS, else 127.0.0.1:9460)",
       {AddStatusCommand, AddPlansCommand, AddJobsCommand, AddEvictCommand, AddPinCommand,
        AddDisableCommand, AddEnableCommand, AddCostsCommand}},
      {"A store's folder, whether its server runs or not", {AddStoreCommand}},
  };
  return groups;
}

std::vector<CLI::App*> CommandsOf(CLI::App& app) {
  return app.get_subcommands(std::function<bool(CLI::App*)>());
}

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
  for (const CLI::App* command : CommandsOf(app)) known.push_back(command->get_name());
  if (known.empty()) return absl::StrCat("unexpected argument \"", word, "\"");
  return absl::StrCat("there is no command \"", word, "\"", DidYouMean(word, known));
}

int UsageError(CLI::App& app, const CLI::ParseError& error) {
  CLI::App* at = &app;
  std::string name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    absl::StrAppend(&name, " ", at->get_name());
  }
  const std::vector<std::string> extras = at->remaining();
  std::cerr << name << ": " << (extras.empty() ? error.what() : AboutExtra(*at, extras.front()))
            << "\n"
            << "See " << name << " --help.\n";
  return kUsage;
}

int Main(int argc, char** argv) {
  CLI::App app{kAbout, "bucketctl"};
  app.require_subcommand(1);
  int exit = kDone;
  for (const Group& group : Groups()) {
    for (const auto add : group.commands) {
      add(app, exit);
      CommandsOf(app).back()->group(group.name);
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error);
  } catch (const std::exception& error) {
    std::cerr << "bucketctl: " << error.what() << "\n";
    return kUnavailable;
  }
  return exit;
}

}  // namespace
}  // namespace bucketd::ctl

int main(int argc, char** argv) { return bucketd::ctl::Main(argc, argv); }
