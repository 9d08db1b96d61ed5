#include "passes/tools/opt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/io/fx_json.h"
#include "passes/io/gzip.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/pass.h"
#include "passes/pass/pipeline.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

constexpr absl::string_view kShows[] = {"tags", "units", "overlap"};

bool Has(const std::vector<std::string>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string NodeText(const Graph& graph, NodeId n) {
  const absl::string_view name = graph.node_name(n);
  return name.empty() ? absl::StrCat("%", n) : absl::StrCat("%", name);
}

// Whole picoseconds, in microseconds.
std::string TimeText(int64_t ps) {
  std::string text = absl::StrFormat("%d.%06d", ps / 1'000'000, ps % 1'000'000);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return absl::StrCat(text, "us");
}

// Position of every collective in the order: where it starts, alone or in its bucket.
struct Positions {
  std::vector<size_t> of_node, wait_of_collective;
  std::vector<BucketId> bucket_of_collective;
};

Positions PositionsIn(const Graph& graph, const Plan& plan) {
  Positions at;
  at.of_node.assign(static_cast<size_t>(graph.size()), 0);
  at.wait_of_collective.assign(graph.collectives().size(), 0);
  at.bucket_of_collective.assign(graph.collectives().size(), -1);
  std::vector<size_t> bucket_wait(plan.buckets.size(), 0);
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const Step& step = plan.order[i];
    const auto id = static_cast<size_t>(step.id);
    if (step.kind == Step::Kind::kNode) at.of_node[id] = i;
    if (step.kind == Step::Kind::kWait) bucket_wait[id] = i;
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const NodeId member : plan.buckets[b].members) {
      const auto c = static_cast<size_t>(graph.collective_of(member));
      at.bucket_of_collective[c] = static_cast<BucketId>(b);
      at.wait_of_collective[c] = bucket_wait[b];
    }
  }
  for (size_t c = 0; c < graph.collectives().size(); ++c) {
    const NodeId wait = graph.collectives()[c].wait;
    if (at.bucket_of_collective[c] < 0 && wait != kNoNode) {
      at.wait_of_collective[c] = at.of_node[static_cast<size_t>(wait)];
    }
  }
  return at;
}

// What the text states, completed: not stated is est, the collective's cost alone; exposed, all of
// it unless something hides it. REQUIRES: a legal plan.
std::vector<LaunchOverlap> OverlapOf(const OptInput& input, const Plan& plan, const Costs& costs) {
  std::vector<LaunchOverlap> launches;
  if (input.overlap.empty()) return launches;
  const Graph& graph = input.graph;
  const Positions at = PositionsIn(graph, plan);
  std::vector<const BirOverlap*> stated(graph.collectives().size(), nullptr);
  for (const BirOverlap& overlap : input.overlap) {
    stated[static_cast<size_t>(overlap.collective)] = &overlap;
  }
  std::vector<CollectiveId> order;
  std::vector<bool> has_launch(plan.buckets.size(), false);
  for (size_t c = 0; c < stated.size(); ++c) {
    const BucketId b = at.bucket_of_collective[c];
    if (graph.collectives()[c].wait == kNoNode) continue;
    if (b >= 0 && has_launch[static_cast<size_t>(b)]) continue;
    if (b >= 0) has_launch[static_cast<size_t>(b)] = true;
    order.push_back(static_cast<CollectiveId>(c));
  }
  std::stable_sort(order.begin(), order.end(), [&](CollectiveId a, CollectiveId b) {
    return at.wait_of_collective[static_cast<size_t>(a)] <
           at.wait_of_collective[static_cast<size_t>(b)];
  });
  for (const CollectiveId c : order) {
    const BirOverlap* const said = stated[static_cast<size_t>(c)];
    LaunchOverlap launch;
    launch.bucket = at.bucket_of_collective[static_cast<size_t>(c)];
    if (launch.bucket < 0) launch.collective = c;
    launch.est_ps = said != nullptr && said->est_ps >= 0
                        ? said->est_ps
                        : costs.CollectivePs(c, graph.collective(c).bytes, 1);
    if (said != nullptr) launch.hidden_by = said->hidden_by;
    launch.exposed_ps = launch.hidden_by.empty() ? launch.est_ps : 0;
    if (said != nullptr && said->exposed_ps >= 0) launch.exposed_ps = said->exposed_ps;
    std::sort(launch.hidden_by.begin(), launch.hidden_by.end(), [&](NodeId a, NodeId b) {
      return at.of_node[static_cast<size_t>(a)] < at.of_node[static_cast<size_t>(b)];
    });
    launches.push_back(std::move(launch));
  }
  return launches;
}

std::string TagLines(const PassContext& context) {
  const Graph& graph = context.graph;
  std::string out;
  for (size_t c = 0; c < context.tags.of.size(); ++c) {
    const CollectiveTag& tag = context.tags.of[c];
    absl::StrAppend(&out, "// tag ", NodeText(graph, graph.collectives()[c].start), ": ",
                    Name(tag.tag), tag.parameter.empty() ? "" : " ", tag.parameter);
    if (c < context.directions.size() && context.directions[c] != Direction::kNone) {
      absl::StrAppend(&out, " ", Name(context.directions[c]));
    }
    out += '\n';
  }
  return out;
}

std::string UnitLines(const PassContext& context) {
  const Graph& graph = context.graph;
  std::string out;
  for (const Unit& unit : context.units) {
    absl::StrAppend(&out, "// unit \"", unit.name, "\":");
    for (const CollectiveId c : unit.collectives) {
      absl::StrAppend(&out, " ", NodeText(graph, graph.collective(c).start));
    }
    out += '\n';
  }
  return out;
}

std::string OverlapLines(const PassContext& context) {
  const Graph& graph = context.graph;
  std::string out;
  for (const LaunchOverlap& launch : context.overlap) {
    const std::string name = launch.bucket >= 0
                                 ? absl::StrCat("b", launch.bucket)
                                 : NodeText(graph, graph.collective(launch.collective).start);
    absl::StrAppend(&out, "// overlap ", name, ": est=", TimeText(launch.est_ps),
                    " exposed=", TimeText(launch.exposed_ps));
    if (!launch.hidden_by.empty()) {
      absl::StrAppend(&out, " hidden_by(",
                      absl::StrJoin(launch.hidden_by, ", ",
                                    [&](std::string* text, NodeId n) {
                                      absl::StrAppend(text, NodeText(graph, n));
                                    }),
                      ")");
    }
    out += '\n';
  }
  return out;
}

absl::Status CheckShows(const OptRequest& request) {
  for (const std::string& name : request.show) {
    if (std::find(std::begin(kShows), std::end(kShows), name) == std::end(kShows)) {
      return absl::InvalidArgumentError(absl::StrCat("nothing to show is called ", name,
                                                     "; known: ", absl::StrJoin(kShows, ", ")));
    }
  }
  for (const std::string& name : request.dump_after) {
    if (name != "all") RETURN_IF_ERROR(MakePass(name).status());
  }
  return absl::OkStatus();
}

// Runs passes one by one and writes what was asked for on the way.
class Runner {
 public:
  Runner(const OptInput& input, const OptRequest& request, const Costs& costs)
      : input_(input), request_(request), costs_(costs) {}

  absl::StatusOr<Plan> Run(absl::Span<const std::string> passes, std::string& out) const {
    const Graph& graph = input_.graph;
    Plan plan = input_.plan.has_value() ? *input_.plan : ProgramOrder(graph);
    RETURN_IF_ERROR(VerifyPlan(graph, plan));
    PassContext context(graph, costs_, request_.options);
    context.program_order = Simulate(graph, ProgramOrder(graph), costs_).prediction;
    context.overlap = OverlapOf(input_, plan, costs_);
    for (const std::string& name : passes) {
      const absl::string_view one[] = {name};
      ASSIGN_OR_RETURN(const Pipeline pipeline, MakePipeline(one));
      std::vector<PassRun> runs;
      RETURN_IF_ERROR(pipeline.Run(context, plan, &runs));
      if (!Has(request_.dump_after, name) && !Has(request_.dump_after, "all")) continue;
      absl::StrAppend(&out, "// after ", name, runs[0].changed ? "" : ", which changed nothing",
                      ":\n", PrintPlan(graph, plan));
    }
    if (Has(request_.show, "tags")) out += TagLines(context);
    if (Has(request_.show, "units")) out += UnitLines(context);
    if (Has(request_.show, "overlap")) out += OverlapLines(context);
    return plan;
  }

 private:
  const OptInput& input_;
  const OptRequest& request_;
  const Costs& costs_;
};

std::string PredictionLine(const Graph& graph, const Plan& plan, const Costs& costs) {
  const Prediction p = Simulate(graph, plan, costs).prediction;
  return absl::StrCat("// predicted total=", TimeText(p.total_ps),
                      " exposed=", TimeText(p.exposed_ps), " peak=", p.peak_bytes,
                      "B collectives=", p.collectives, "\n");
}

std::string DiagnosticLines(const Plan& plan) {
  std::string out;
  for (const Diagnostic& diagnostic : plan.diagnostics) {
    absl::StrAppend(&out, "// ", diagnostic.code, ": ", diagnostic.text, "\n");
  }
  return out;
}

}  // namespace

absl::Span<const absl::string_view> OptShows() { return kShows; }

absl::StatusOr<OptInput> ReadOptInput(absl::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  const bool is_json = first != absl::string_view::npos && bytes[first] == '{';
  if (IsGzip(bytes) || is_json) {
    ASSIGN_OR_RETURN(CapturedGraph captured, ReadCapturedGraph(bytes));
    return OptInput{std::move(captured.graph),
                    std::move(captured.costs),
                    captured.has_costs,
                    std::move(captured.mesh),
                    {},
                    std::nullopt};
  }
  ASSIGN_OR_RETURN(ParsedBir parsed, ParseBir(bytes.substr(0, bytes.find(kGoldenMark))));
  return OptInput{std::move(parsed.graph), std::move(parsed.costs),   parsed.has_costs,
                  std::move(parsed.mesh),  std::move(parsed.overlap), std::move(parsed.plan)};
}

absl::StatusOr<std::string> RunOpt(const OptInput& input, const OptRequest& request) {
  RETURN_IF_ERROR(CheckShows(request));
  RETURN_IF_ERROR(request.options.Validate());
  if (input.plan.has_value() && request.passes.empty() && request.options.mode != "none") {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has a plan already, so mode ", request.options.mode,
                     " has nothing to plan; --pass runs passes on it"));
  }
  const Graph& graph = input.graph;
  ASSIGN_OR_RETURN(const Costs costs,
                   input.has_costs ? Costs::FromFile(graph, input.costs, request.profile)
                                   : Costs::FromDeviceModel(graph, input.mesh, request.profile));
  const Runner runner(input, request, costs);
  std::string out;
  Plan plan;
  if (!request.passes.empty() || input.plan.has_value()) {
    ASSIGN_OR_RETURN(plan, runner.Run(request.passes, out));
  } else {
    if (!request.dump_after.empty() || !request.show.empty()) {
      const ModeInfo* const mode = FindMode(request.options.mode);
      const std::vector<std::string> passes(mode->passes.begin(), mode->passes.end());
      RETURN_IF_ERROR(runner.Run(passes, out).status());
    }
    ASSIGN_OR_RETURN(plan, MakePlan(graph, costs, request.options));
  }
  if (request.print_graph) {
    BirParts parts;
    if (input.has_costs) parts.costs = &input.costs;
    parts.mesh = &input.mesh;
    parts.overlap = input.overlap;
    absl::StrAppend(&out, PrintBir(graph, parts));
  }
  if (request.print_diagnostics) absl::StrAppend(&out, DiagnosticLines(plan));
  if (request.print_prediction) absl::StrAppend(&out, PredictionLine(graph, plan, costs));
  absl::StrAppend(&out, PrintPlan(graph, plan));
  return out;
}

}  // namespace bucketd
