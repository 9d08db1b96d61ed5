// bucketd-opt: text in, passes by name, text out.
#include <exception>
#include <iostream>

#include "CLI/CLI.hpp"

#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"
#include "passes/tools/opt.h"
#include "passes/tools/opt_flags.h"

namespace bucketd {
namespace {

enum ExitCode : int { kDone = 0, kRefused = 1, kUsage = 2, kUnavailable = 3 };

int Fail(ExitCode code, const absl::Status& status) {
  std::cerr << "bucketd-opt: " << status.message() << "\n";
  return code;
}

int Run(const OptFlags& flags) {
  if (flags.list) {
    std::cout << OptTables();
    return kDone;
  }
  const absl::StatusOr<OptRequest> request = flags.ToRequest();
  if (!request.ok()) return Fail(kUsage, request.status());
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  const absl::StatusOr<std::string> bytes =
      ReadFile(flags.file == "-" ? "/dev/stdin" : flags.file, kMaxBytes);
  if (!bytes.ok()) return Fail(kUnavailable, bytes.status());
  const absl::StatusOr<OptInput> input = ReadOptInput(*bytes);
  if (!input.ok()) {
    return Fail(kRefused, absl::Status(input.status().code(),
                                       flags.file + ":" + std::string(input.status().message())));
  }
  const absl::StatusOr<std::string> out = RunOpt(*input, *request);
  if (!out.ok()) return Fail(kRefused, out.status());
  std::cout << *out;
  return std::cout.flush() ? kDone : kUnavailable;
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) {
  CLI::App app{
      "bucketd-opt runs planner passes on a graph that is written as text, and writes the plan as\n"
      "text: for tests, and to see what one pass does.\n\n"
      "  bucketd-opt step.bir --mode=manual --set buckets=layers.0,layers.1 --predict\n"
      "  bucketd-opt step.bir --pass=tag-collectives,find-blocks --show=tags,units\n"
      "  bucketd-opt step.bw.json.gz --graph > step.bir\n"
      "  bucketd-opt step.bir --mode=transformer_block --dump-after=all\n\n"
      "Exit codes: 0 done, 1 refused (graph, plan or pass), 2 usage, 3 unavailable.",
      "bucketd-opt"};
  app.set_version_flag("--version", "bucketd-opt " BUCKETD_VERSION);
  bucketd::OptFlags flags;
  bucketd::AddOptFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cerr, std::cerr);
    return bucketd::kUsage;
  }
  try {
    return bucketd::Run(flags);
  } catch (const std::exception& error) {
    std::cerr << "bucketd-opt: " << error.what() << "\n";
    return bucketd::kUnavailable;
  }
}
