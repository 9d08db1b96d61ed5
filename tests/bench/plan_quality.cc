// Plans captured graphs under the referee's profiles, as every configuration says: a JSON line a
// plan and, with a folder, the plans themselves. tests/bench/quality.py makes the table.
//
//   plan_quality FOLDER CONFIG... GRAPH.json.gz...
//
// FOLDER "-": no plans. CONFIG: "option=value,option=value", or "front": plans of the front of step
// time against peak memory, of mode auto under free numerics.
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "passes/base/status_macros.h"
#include "passes/io/fx_json.h"
#include "passes/io/plan_json.h"
#include "passes/io/profile_json.h"
#include "passes/pareto.h"
#include "passes/pass/option_table.h"
#include "passes/planner.h"
#include "passes/sim/sharp_bound.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

constexpr absl::string_view kFront = "front";

// Picoseconds as exact microseconds: "12.345000".
std::string ExactUs(int64_t ps) {
  return absl::StrFormat("%d.%06d", ps / 1'000'000, ps % 1'000'000);
}

double CpuMs() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Config {
  std::string text;
  PlanOptions options;
};

absl::StatusOr<Config> ParseConfig(absl::string_view text) {
  Config config{std::string(text), {}};
  config.options.mode = "auto";
  config.options.numerics = Numerics::kFree;
  if (text == kFront) return config;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> option =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    RETURN_IF_ERROR(SetOption(config.options, option.first, option.second));
  }
  return config;
}

// Plans of a graph under a profile, one after the other.
class Writer {
 public:
  Writer(std::string folder, std::string file, const Graph& graph, const CostProfile& profile,
         const Costs& costs)
      : folder_(std::move(folder)),
        file_(std::move(file)),
        graph_(graph),
        profile_(profile),
        costs_(costs) {}

  absl::Status Make(const Config& config) {
    const double before = CpuMs();
    if (config.text == kFront) {
      ASSIGN_OR_RETURN(const std::vector<ParetoPoint> front,
                       ParetoFront(graph_, costs_, config.options));
      for (const ParetoPoint& point : front) Write(config.text, point.plan, CpuMs() - before);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const Plan plan, MakePlan(graph_, costs_, config.options));
    Write(config.text, plan, CpuMs() - before);
    return absl::OkStatus();
  }

 private:
  void Write(absl::string_view config, const Plan& plan, double took_ms) {
    const std::string name = absl::StrCat(file_, ".", profile_.name, ".", made_++, ".plan.json");
    const std::string line = absl::StrFormat(
        "{\"file\": \"%s\", \"profile\": \"%s\", \"config\": \"%s\", \"plan\": \"%s\", "
        "\"total_us\": %s, \"peak_bytes\": %d, \"referee_bound_us\": %s, \"bound_us\": %s, "
        "\"cpu_ms\": %.2f}\n",
        file_, profile_.name, config, name, ExactUs(plan.prediction.total_ps),
        plan.prediction.peak_bytes, ExactUs(LowerBoundPs(graph_, costs_)),
        ExactUs(SharpBoundOf(graph_, costs_).total_ps), took_ms);
    std::fputs(line.c_str(), stdout);
    if (folder_ != "-") {
      std::ofstream(absl::StrCat(folder_, "/", name)) << PlanToJson(graph_, plan);
    }
  }

  const std::string folder_, file_;
  const Graph& graph_;
  const CostProfile& profile_;
  const Costs& costs_;
  int made_ = 0;
};

absl::Status PlanAll(const std::string& folder, const std::vector<Config>& configs,
                     const std::string& path) {
  ASSIGN_OR_RETURN(const CapturedGraph captured, ReadCapturedGraphFile(path));
  for (const CostProfile& profile : BuiltInProfiles()) {
    if (profile.name == "cpu_loopback") continue;  // not one of the referee's
    ASSIGN_OR_RETURN(const Costs costs, Costs::FromFile(captured.graph, captured.costs, profile));
    Writer writer(folder, std::filesystem::path(path).filename().string(), captured.graph, profile,
                  costs);
    for (const Config& config : configs) RETURN_IF_ERROR(writer.Make(config));
  }
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  if (argc < 4) {
    return absl::InvalidArgumentError("usage: plan_quality FOLDER CONFIG... GRAPH.json.gz...");
  }
  std::vector<Config> configs;
  for (int i = 2; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == kFront || absl::StrContains(argument, '=')) {
      ASSIGN_OR_RETURN(configs.emplace_back(), ParseConfig(argument));
    } else {
      RETURN_IF_ERROR(PlanAll(argv[1], configs, argv[i]));
    }
  }
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
