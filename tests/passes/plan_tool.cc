// Plans by the thousand: each line of standard input is G and a captured graph, C and a cost
// profile, or O and options ("name=value,name=value"), which ask for a plan of the graph and the
// profile before them. Each is answered with a line, in their order: {"refused": why}, or the
// plan's figures and the plan.
//
//   plan_tool [THREADS]
#include <algorithm>
#include <atomic>
#include <clocale>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "passes/base/status_macros.h"
#include "passes/io/fx_json.h"
#include "passes/io/json_fields.h"
#include "passes/io/plan_json.h"
#include "passes/io/profile_json.h"
#include "passes/pass/option_table.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"

namespace bucketd {
namespace {

struct Job {
  std::shared_ptr<const CapturedGraph> graph;
  std::shared_ptr<const CostProfile> profile;
  std::string options;
};

absl::StatusOr<std::string> Answer(const Job& job) {
  PlanOptions options;
  for (const absl::string_view part : absl::StrSplit(job.options, ',')) {
    const std::pair<absl::string_view, absl::string_view> option =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    RETURN_IF_ERROR(SetOption(options, option.first, option.second));
  }
  const Graph& graph = job.graph->graph;
  ASSIGN_OR_RETURN(const Costs costs, Costs::FromFile(graph, job.graph->costs, *job.profile));
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(graph, costs, options));
  RETURN_IF_ERROR(VerifyPlan(graph, plan));
  std::string text = PlanToJson(graph, plan);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return absl::StrCat(
      "{\"total_ps\": ", plan.prediction.total_ps, ", \"peak_bytes\": ", plan.prediction.peak_bytes,
      ", \"bound_ps\": ", plan.lower_bound_ps,
      ", \"program_order\": {\"total_ps\": ", plan.program_order.total_ps,
      ", \"peak_bytes\": ", plan.program_order.peak_bytes, "}, \"plan\": ", text, "}");
}

absl::StatusOr<std::vector<Job>> ReadJobs() {
  std::vector<Job> jobs;
  Job job;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.empty()) continue;
    const std::string rest = line.substr(1);
    if (line[0] == 'G') {
      ASSIGN_OR_RETURN(CapturedGraph graph, ReadCapturedGraph(rest));
      job.graph = std::make_shared<const CapturedGraph>(std::move(graph));
    } else if (line[0] == 'C') {
      ASSIGN_OR_RETURN(CostProfile profile, ProfileFromJson(rest, "drawn"));
      job.profile = std::make_shared<const CostProfile>(std::move(profile));
    } else {
      if (job.graph == nullptr || job.profile == nullptr) {
        return absl::InvalidArgumentError("options come behind a graph and a cost profile");
      }
      job.options = rest;
      jobs.push_back(job);
    }
  }
  return jobs;
}

int Run(int threads) {
  const absl::StatusOr<std::vector<Job>> jobs = ReadJobs();
  if (!jobs.ok()) {
    std::cerr << jobs.status() << "\n";
    return 1;
  }
  std::vector<std::string> answers(jobs->size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < answers.size(); i = next++) {
      const absl::StatusOr<std::string> answer = Answer((*jobs)[i]);
      answers[i] =
          answer.ok()
              ? *answer
              : absl::StrCat("{\"refused\": ", internal::Quoted(answer.status().message()), "}");
    }
  };
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  for (const std::string& answer : answers) std::cout << answer << "\n";
  return 0;
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) {
  std::setlocale(LC_ALL, "");
  int threads = 1;
  if (argc > 1 && !absl::SimpleAtoi(argv[1], &threads)) return 2;
  return bucketd::Run(threads);
}
