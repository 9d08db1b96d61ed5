// Plans captured graphs under the built-in profiles and writes what the referee needs: a line of
// figures a plan and, with a folder, the plans. tests/bench/quality.py makes the table.
//
//   plan_quality FOLDER MODE EFFORT NUMERICS PPM GRAPH.json.gz...
//
// FOLDER "-": no plans. A line: file, profile, total ps, peak bytes, bound ps, CPU ms.
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/fx_json.h"
#include "passes/io/plan_json.h"
#include "passes/io/profile_json.h"
#include "passes/pass/option_table.h"
#include "passes/planner.h"

namespace bucketd {
namespace {

double CpuMs() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

absl::Status PlanAll(const std::string& folder, const PlanOptions& options,
                     const std::string& path) {
  ASSIGN_OR_RETURN(const CapturedGraph captured, ReadCapturedGraphFile(path));
  const std::string file = std::filesystem::path(path).filename().string();
  for (const CostProfile& profile : BuiltInProfiles()) {
    if (profile.name == "cpu_loopback") continue;  // not one of the referee's
    ASSIGN_OR_RETURN(const Costs costs, Costs::FromFile(captured.graph, captured.costs, profile));
    const double before = CpuMs();
    ASSIGN_OR_RETURN(const Plan plan, MakePlan(captured.graph, costs, options));
    const double took = CpuMs() - before;
    std::printf("%s %s %lld %lld %lld %.2f\n", file.c_str(), profile.name.c_str(),
                static_cast<long long>(plan.prediction.total_ps),
                static_cast<long long>(plan.prediction.peak_bytes),
                static_cast<long long>(plan.lower_bound_ps), took);
    if (folder == "-") continue;
    std::ofstream(absl::StrCat(folder, "/", file, ".", profile.name, ".plan.json"))
        << PlanToJson(captured.graph, plan);
  }
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  if (argc < 7) {
    return absl::InvalidArgumentError(
        "usage: plan_quality FOLDER MODE EFFORT NUMERICS PPM GRAPH.json.gz...");
  }
  PlanOptions options;
  const char* names[] = {"mode", "effort", "numerics", "memory_limit_ppm"};
  for (int i = 0; i < 4; ++i) RETURN_IF_ERROR(SetOption(options, names[i], argv[i + 2]));
  for (int i = 6; i < argc; ++i) RETURN_IF_ERROR(PlanAll(argv[1], options, argv[i]));
  return absl::OkStatus();
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) {
  const absl::Status status = bucketd::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "plan_quality: %s\n", status.ToString().c_str());
  return 1;
}
