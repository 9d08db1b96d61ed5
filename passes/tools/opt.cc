#include "passes/tools/opt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/io/fx_json.h"
#include "passes/io/gzip.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/pass.h"
#include "passes/pass/pipeline.h"
#include "passes/pass/plan_launch.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

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

// What the text states, completed: not stated is est, the collective's cost alone; exposed, all of
// it unless something hides it. REQUIRES: a legal plan.
std::vector<LaunchOverlap> OverlapOf(const OptInput& input, const Plan& plan, const Costs& costs) {
  std::vector<LaunchOverlap> launches;
  if (input.overlap.empty()) return launches;
  const Graph& graph = input.graph;
  const std::vector<int32_t> place = PlacesOf(graph, plan.buckets, plan.order);
  std::vector<BucketId> bucket_of(graph.collectives().size(), -1);
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const NodeId member : plan.buckets[b].members) {
      bucket_of[Index(graph.collective_of(member))] = static_cast<BucketId>(b);
    }
  }
  std::vector<const BirOverlap*> stated(graph.collectives().size(), nullptr);
  for (const BirOverlap& overlap : input.overlap) stated[Index(overlap.collective)] = &overlap;
  std::vector<CollectiveId> order;
  std::vector<bool> has_launch(plan.buckets.size(), false);
  for (size_t c = 0; c < stated.size(); ++c) {
    const BucketId b = bucket_of[c];
    if (graph.collectives()[c].wait == kNoNode) continue;
    if (b >= 0 && has_launch[Index(b)]) continue;
    if (b >= 0) has_launch[Index(b)] = true;
    order.push_back(static_cast<CollectiveId>(c));
  }
  std::stable_sort(order.begin(), order.end(), [&](CollectiveId a, CollectiveId b) {
    return place[Index(graph.collective(a).wait)] < place[Index(graph.collective(b).wait)];
  });
  for (const CollectiveId c : order) {
    const BirOverlap* const said = stated[Index(c)];
    LaunchOverlap launch;
    launch.bucket = bucket_of[Index(c)];
    if (launch.bucket < 0) launch.collective = c;
    launch.est_ps = said != nullptr && said->est_ps >= 0
                        ? said->est_ps
                        : costs.CollectivePs(c, graph.collective(c).bytes, 1);
    if (said != nullptr) launch.hidden_by = said->hidden_by;
    launch.exposed_ps = launch.hidden_by.empty() ? launch.est_ps : 0;
    if (said != nullptr && said->exposed_ps >= 0) launch.exposed_ps = said->exposed_ps;
    std::sort(launch.hidden_by.begin(), launch.hidden_by.end(),
              [&](NodeId a, NodeId b) { return place[Index(a)] < place[Index(b)]; });
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
    if (std::find(std::begin(kOptShows), std::end(kOptShows), name) == std::end(kOptShows)) {
      return absl::InvalidArgumentError(absl::StrCat("nothing to show is called ", name,
                                                     "; known: ", absl::StrJoin(kOptShows, ", ")));
    }
  }
  for (const std::string& name : request.dump_after) {
    if (name != "all") RETURN_IF_ERROR(MakePass(name).status());
  }
  return absl::OkStatus();
}

std::string DumpText(const OptRequest& request, const Graph& graph, const PassRun& run,
                     const Plan& plan) {
  if (!Has(request.dump_after, run.pass) && !Has(request.dump_after, "all")) return "";
  return absl::StrCat("// after ", run.pass, run.changed ? "" : ", which changed nothing", ":\n",
                      PrintPlan(graph, plan));
}

std::string ShownText(const OptRequest& request, const PassContext& context) {
  std::string out;
  if (Has(request.show, "tags")) out += TagLines(context);
  if (Has(request.show, "units")) out += UnitLines(context);
  if (Has(request.show, "overlap")) out += OverlapLines(context);
  return out;
}

// The request's passes on the text's plan, or on program order.
absl::StatusOr<Plan> RunPasses(const OptInput& input, const OptRequest& request, const Costs& costs,
                               std::string& out) {
  const Graph& graph = input.graph;
  Plan plan = input.plan.has_value() ? *input.plan : ProgramOrder(graph);
  RETURN_IF_ERROR(VerifyPlan(graph, plan));
  PassContext context(graph, costs, request.options);
  context.program_order = Simulate(graph, ProgramOrder(graph), costs).prediction;
  context.overlap = OverlapOf(input, plan, costs);
  const std::vector<absl::string_view> names(request.passes.begin(), request.passes.end());
  ASSIGN_OR_RETURN(const Pipeline pipeline, MakePipeline(names));
  RETURN_IF_ERROR(
      pipeline.Run(context, plan, [&](const PassRun& run, const PassContext&, const Plan& made) {
        out += DumpText(request, graph, run, made);
      }));
  out += ShownText(request, context);
  return plan;
}

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
  return ParseBir(bytes.substr(0, bytes.find(kGoldenMark)));
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
  std::string out;
  Plan plan;
  if (!request.passes.empty() || input.plan.has_value()) {
    ASSIGN_OR_RETURN(plan, RunPasses(input, request, costs, out));
  } else {
    std::string shown;  // by the last pass
    ASSIGN_OR_RETURN(
        plan, MakePlan(graph, costs, request.options,
                       [&](const PassRun& run, const PassContext& context, const Plan& made) {
                         out += DumpText(request, graph, run, made);
                         shown = ShownText(request, context);
                       }));
    out += shown;
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
  // A graph that is only to be read goes without a plan, so that the next call can plan it.
  const bool planned =
      input.plan.has_value() || !request.passes.empty() || request.options.mode != "none";
  if (planned || !request.print_graph) absl::StrAppend(&out, PrintPlan(graph, plan));
  return out;
}

}  // namespace bucketd
