#include "client/cli/command_line.h"

#include <errno.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

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

int UsageError(CLI::App& app, const CLI::ParseError& error) {
  CLI::App* at = &app;
  std::string name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    absl::StrAppend(&name, " ", at->get_name());
  }
  const std::vector<std::string> extras = at->remaining();
  const std::string what = extras.empty() ? error.what() : AboutExtra(*at, extras.front());
  std::fprintf(stderr, "%s: %s\nSee %s --help.\n", name.c_str(), what.c_str(), name.c_str());
  return kUsage;
}

}  // namespace

int Report(const absl::Status& status) {
  if (status.ok()) return kDone;
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
               std::string(status.message()).c_str());
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return kUsage;
    case absl::StatusCode::kUnavailable:
      return kUnavailable;
    default:
      return kRefused;
  }
}

int RunCommandLine(CLI::App& app, int argc, char** argv, const int& exit) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return kUnavailable;
  }
  return exit;
}

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

}  // namespace bucketd
