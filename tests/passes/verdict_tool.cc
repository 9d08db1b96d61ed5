// Verdicts by the thousand: each line of standard input is G and a captured graph, or P and a plan
// for the graph before it, both JSON; each plan is answered with a line, "legal" or "illegal: why".
#include <algorithm>
#include <iostream>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "passes/io/fx_json.h"
#include "passes/io/plan_json.h"
#include "passes/plan/verify.h"

namespace bucketd {
namespace {

absl::Status Verdict(const Graph& graph, absl::string_view json) {
  const absl::StatusOr<Plan> plan = PlanFromJson(json);
  return plan.ok() ? VerifyPlan(graph, *plan) : plan.status();
}

int Run() {
  std::optional<CapturedGraph> graph;
  for (std::string line; std::getline(std::cin, line);) {
    const absl::string_view rest = absl::string_view(line).substr(1);
    if (line[0] == 'G') {
      absl::StatusOr<CapturedGraph> read = ReadCapturedGraph(rest);
      if (!read.ok()) {
        std::cerr << read.status() << "\n";
        return 1;
      }
      graph = *std::move(read);
      continue;
    }
    const absl::Status status = Verdict(graph->graph, rest);
    std::string text(status.message());
    std::replace(text.begin(), text.end(), '\n', ';');
    std::cout << (status.ok() ? "legal" : "illegal: " + text) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace bucketd

int main() { return bucketd::Run(); }
