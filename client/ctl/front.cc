#include "client/ctl/front.h"

#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/ticker.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/io/plan_json.h"
#include "passes/pareto.h"
#include "passes/pass/option_table.h"

namespace bucketd::ctl {
namespace {

// As --memory-limit takes it.
std::string LimitText(const PlanOptions& options) {
  if (options.memory_limit_bytes > 0) return absl::StrCat(options.memory_limit_bytes);
  return absl::StrFormat("%gx", static_cast<double>(options.memory_limit_ppm) * 1e-6);
}

std::string NumberedPath(const std::string& path, size_t number) {
  std::filesystem::path numbered(path);
  const std::string extension = numbered.extension().string();
  numbered.replace_extension(absl::StrCat(".", number, extension));
  return numbered.string();
}

// Time above the fastest point, as a bar.
std::string Bar(const std::vector<ParetoPoint>& front, const ParetoPoint& point) {
  constexpr double kWidth = 30.0;
  const auto time = [](const ParetoPoint& p) {
    return static_cast<double>(p.plan.prediction.total_ps);
  };
  const double fastest = time(front.back()), range = time(front.front()) - fastest;
  const double share = range > 0.0 ? (time(point) - fastest) / range : 0.0;
  return std::string(static_cast<size_t>(share * kWidth + 0.5), '#');
}

void PrintTable(const Input& input, const std::string& mode,
                const std::vector<ParetoPoint>& front) {
  Table table("rrrrrrrrrl", {"", "--memory-limit", "peak memory", "change", "step time", "change",
                             "x bound", "exposed", "buckets", "time above the fastest"});
  const Prediction& before = front[0].plan.program_order;
  const int64_t bound = front[0].plan.lower_bound_ps;
  const auto cells = [&](std::string number, std::string limit, const Prediction& now,
                         std::string buckets, std::string bar) {
    return std::vector<std::string>{std::move(number),
                                    std::move(limit),
                                    Mib(now.peak_bytes),
                                    Change(now.peak_bytes, before.peak_bytes),
                                    Duration(now.total_ps),
                                    Change(now.total_ps, before.total_ps),
                                    absl::StrFormat("%.3f", Ratio(now.total_ps, bound)),
                                    Duration(now.exposed_ps),
                                    std::move(buckets),
                                    std::move(bar)};
  };
  table.AddRow(cells("", "program order", before, "", ""));
  for (size_t i = 0; i < front.size(); ++i) {
    const Plan& plan = front[i].plan;
    const PlanOptions& made = front[i].options;
    const std::string other = made.mode == mode ? "" : absl::StrCat(" --mode ", made.mode);
    table.AddRow(cells(absl::StrCat(i + 1), LimitText(made) + other, plan.prediction,
                       absl::StrCat(plan.buckets.size()), Bar(front, front[i])));
  }
  const Graph& graph = input.captured.graph;
  Print(ForTerminal(absl::StrCat(graph.name(), " ", input.captured.kind, ": mode ", mode,
                                 ", cost profile ", input.costs.profile_id(), ", lower bound ",
                                 Duration(bound), "\n\n", table.Text())));
}

void PrintJson(const Input& input, const std::string& mode, const std::vector<ParetoPoint>& front) {
  const Graph& graph = input.captured.graph;
  const auto point = [&](const ParetoPoint& p) {
    return Json::Object({{"memory_limit", LimitText(p.options)},
                         {"mode", p.options.mode},
                         {"buckets", p.plan.buckets.size()}})
        .Merge(FiguresJson(input, p.plan));
  };
  const Json object = Json::Object({{"graph", graph.name()},
                                    {"digest", ToHex(input.digest)},
                                    {"nodes", graph.size()},
                                    {"mode", mode},
                                    {"cost_profile", input.costs.profile_id()},
                                    {"lower_bound_us", Json::Us(front[0].plan.lower_bound_ps)},
                                    {"program_order", FiguresJson(input, ProgramOrder(graph))},
                                    {"front", Json::List(front, point)}});
  Print(object.Text());
}

absl::StatusOr<std::vector<ParetoPoint>> Search(const Input& input, const PlanOptions& options) {
  const Ticker ticker(absl::StrCat("planning ", WithThousands(input.captured.graph.size()),
                                   " nodes under one memory limit after the other"));
  ASSIGN_OR_RETURN(std::vector<ParetoPoint> front,
                   ParetoFront(input.normalized.graph, input.normalized_costs, options));
  for (ParetoPoint& point : front) {
    ASSIGN_OR_RETURN(point.plan, ForFile(input, std::move(point.plan)));
  }
  return front;
}

}  // namespace

absl::Status ShowFront(const Input& input, const PlanOptions& options, const std::string& plan_out,
                       bool json) {
  for (const std::string& unread : UnreadOptions(options)) {
    std::fprintf(stderr, "%s\n", unread.c_str());
  }
  ASSIGN_OR_RETURN(std::vector<ParetoPoint> front, Search(input, options));
  for (size_t i = 0; i < front.size() && !plan_out.empty(); ++i) {
    const std::string path = NumberedPath(plan_out, i + 1);
    RETURN_IF_ERROR(WriteFile(path, PlanToJson(input.captured.graph, front[i].plan)));
    std::fprintf(stderr, "plan: %s\n", path.c_str());
  }
  if (json) {
    PrintJson(input, options.mode, front);
  } else {
    PrintTable(input, options.mode, front);
  }
  return absl::OkStatus();
}

}  // namespace bucketd::ctl
