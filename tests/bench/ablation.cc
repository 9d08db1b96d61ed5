// What each start, knob and part of mode auto's search is worth, on generated steps: each is left
// out alone, and what that changes printed as a Markdown table.
//
//   ablation SEEDS FIRST_SEED [NAME,NAME...]...
//
// Each further argument leaves these out together, as the rows of a run without one are named;
// seed=N draws other random numbers, work=N places more or fewer leaders.
//
// gaps: geometric mean of what the step takes above the lower bound, against the whole search's;
// what is below 0.1 % counts as that. longer: the step against the whole search's, in the mean and
// the pair that loses most. wrong costs: what a plan of a small step made from perturbed costs
// takes under the true ones, above the whole search's plan that knew them; and the share that loses
// more than 3 %. The rows with other random numbers say how much is chance.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "passes/auto/auto_pass.h"
#include "passes/auto/tuning.h"
#include "passes/io/profile_json.h"
#include "passes/modes/pass_registry.h"
#include "passes/sim/simulator.h"
#include "tests/passes/generated_steps.h"
#include "tests/passes/perturbed_costs.h"

namespace bucketd::testing {
namespace {

using search::Tuning;

struct Pair {
  bool large = false;
  const CapturedGraph* step = nullptr;
  Costs truth, wrong;
};

// Of one pair, in picoseconds.
struct Figures {
  double total = 0, bound = 0;                               // under the true costs
  double wrong_total = 0, wrong_bound = 0, under_truth = 0;  // of a plan made from wrong ones
};

double LogOfGaps(double total, double bound, double before) {
  const auto gap = [&](double time) { return std::max(time / bound - 1, 1e-3); };
  return std::log(gap(total) / gap(before));
}

struct Mean {
  double sum = 0;
  int count = 0;
  void Add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return sum / std::max(1, count); }
};

double CpuMs() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Plan MakePlan(const Graph& graph, const Costs& costs, const Tuning& tuning) {
  PlanOptions options;
  options.mode = "auto";
  options.numerics = Numerics::kFree;
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(*MakePass("tag-collectives"));
  passes.push_back(MakeSearchPass(ModesToStartFrom(), tuning));
  passes.push_back(*MakePass("payload-order"));
  Plan plan = ProgramOrder(graph);
  PassContext context(graph, costs, options);
  context.program_order = Simulate(graph, plan, costs).prediction;
  const absl::Status status = Pipeline(std::move(passes)).Run(context, plan);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return plan;
}

double TotalOf(const Graph& graph, const Plan& plan, const Costs& costs) {
  return static_cast<double>(Simulate(graph, plan, costs).prediction.total_ps);
}

struct Row {
  std::string name;
  Tuning tuning;
  const char* why = "";  // it is there
};

class Ablation {
 public:
  Ablation(uint32_t first, uint32_t seeds) {
    for (uint32_t seed = first; seed < first + seeds; ++seed) {
      for (size_t kind = 0; kind < GeneratedKinds().size(); ++kind) {
        AddStep(kind, seed, false);
        if (seed == first) AddStep(kind, seed, true);
      }
    }
  }

  void Print(const Row& row) {
    const double before = CpuMs();
    Mean small, large, longer, lost, above;
    double most = 0;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const Figures now = Measure(pairs_[i], row.tuning);
      if (base_.size() == i) base_.push_back(now);
      const Figures& base = base_[i];
      (pairs_[i].large ? large : small).Add(LogOfGaps(now.total, now.bound, base.total));
      longer.Add(now.total / base.total - 1);
      most = std::max(most, now.total / base.total - 1);
      if (pairs_[i].large) continue;
      small.Add(LogOfGaps(now.wrong_total, now.wrong_bound, base.wrong_total));
      lost.Add(now.under_truth / base.total - 1);
      above.Add(now.under_truth / base.total > 1.03 ? 1 : 0);
    }
    std::printf("| %-40s | %6.1f | %6.1f | %6.3f | %6.2f | %6.3f | %4.1f | %6.0f | %s |\n",
                row.name.c_str(), 100 * std::expm1(small.value()), 100 * std::expm1(large.value()),
                100 * longer.value(), 100 * most, 100 * lost.value(), 100 * above.value(),
                CpuMs() - before, row.why);
    std::fflush(stdout);
  }

 private:
  static Figures Measure(const Pair& pair, const Tuning& tuning) {
    const Graph& graph = pair.step->graph;
    Figures now;
    now.total = TotalOf(graph, MakePlan(graph, pair.truth, tuning), pair.truth);
    now.bound = static_cast<double>(LowerBoundPs(graph, pair.truth));
    if (pair.large) return now;
    const Plan wrong = MakePlan(graph, pair.wrong, tuning);
    now.under_truth = TotalOf(graph, wrong, pair.truth);
    now.wrong_total = TotalOf(graph, wrong, pair.wrong);
    now.wrong_bound = static_cast<double>(LowerBoundPs(graph, pair.wrong));
    return now;
  }

  void AddStep(size_t kind, uint32_t seed, bool large) {
    steps_.push_back(std::make_unique<CapturedGraph>(GeneratedStep(kind, seed, large)));
    const CapturedGraph& step = *steps_.back();
    // Every kind under two profiles, in turns.
    for (const size_t p : {(kind + seed) % 4, (kind + seed + 1 + seed % 3) % 4}) {
      const CostProfile& profile = BuiltInProfiles()[p];
      pairs_.push_back({large, &step, *Costs::FromFile(step.graph, step.costs, profile),
                        *PerturbedCosts(step, profile, seed + 77, 0.3)});
    }
  }

  std::vector<std::unique_ptr<CapturedGraph>> steps_;
  std::vector<Pair> pairs_;
  std::vector<Figures> base_;
};

std::vector<Row> AllRows() {
  std::vector<Row> rows = {{"nothing", {}}};
  for (uint64_t seed = 2; seed < 5; ++seed) {
    rows.push_back({absl::StrCat("nothing, seed=", seed), {}});
    rows.back().tuning.seed = seed;
  }
  for (size_t p = 0; p < std::size(search::kParts); ++p) {
    rows.push_back({search::kParts[p].name, {}, search::kParts[p].why});
    rows.back().tuning.parts &= ~(uint64_t{1} << p);
  }
  const std::vector<search::Start> starts = search::StartsOf({1000, 1000, 1000});
  for (size_t s = 0; s < starts.size(); ++s) {
    rows.push_back({absl::StrCat("start: ", starts[s].name), {}, starts[s].why});
    rows.back().tuning.starts &= ~(uint64_t{1} << s);
  }
  const std::vector<search::Knob> knobs = search::KnobsOf({1000, 1000, 1000});
  for (size_t k = 0; k < knobs.size(); ++k) {
    rows.push_back({absl::StrCat("knob: ", knobs[k].name), {}, knobs[k].why});
    rows.back().tuning.knobs &= ~(uint64_t{1} << k);
  }
  return rows;
}

// Leaves out what the names say, separated by commas; false if there is none of one.
bool LeaveOut(const std::vector<Row>& all, absl::string_view names, Tuning& tuning) {
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    const std::pair<absl::string_view, absl::string_view> set =
        absl::StrSplit(name, absl::MaxSplits('=', 1));
    const auto same = absl::c_find_if(all, [&](const Row& row) { return row.name == name; });
    if (same != all.end()) {
      tuning.parts &= same->tuning.parts;
      tuning.starts &= same->tuning.starts;
      tuning.knobs &= same->tuning.knobs;
    } else if (!(set.first == "seed" && absl::SimpleAtoi(set.second, &tuning.seed)) &&
               !(set.first == "work" && absl::SimpleAtoi(set.second, &tuning.work))) {
      return false;
    }
  }
  return true;
}

int Run(int argc, char** argv) {
  uint32_t seeds = 0, first = 0;
  if (argc < 3 || !absl::SimpleAtoi(argv[1], &seeds) || !absl::SimpleAtoi(argv[2], &first)) {
    std::fprintf(stderr, "usage: ablation SEEDS FIRST_SEED [NAME,NAME...]...\n");
    return 2;
  }
  const std::vector<Row> all = AllRows();
  std::vector<Row> rows(1, {"nothing", {}});
  if (argc == 3) rows = all;
  for (int i = 3; i < argc; ++i) {
    rows.push_back({argv[i], {}});
    if (LeaveOut(all, argv[i], rows.back().tuning)) continue;
    std::fprintf(stderr, "%s: not a part of the search\n", argv[i]);
    return 2;
  }
  Ablation ablation(first, seeds);
  std::printf(
      "| left out | gaps of small steps %% | of large ones %% | longer, mean %% | most %% | wrong "
      "costs, mean %% | above 3 %% | CPU ms | what it is for |\n| --- | ---: | ---: | ---: | ---: "
      "| ---: | ---: | "
      "---: | --- |\n");
  for (const Row& row : rows) ablation.Print(row);
  return 0;
}

}  // namespace
}  // namespace bucketd::testing

int main(int argc, char** argv) { return bucketd::testing::Run(argc, argv); }
