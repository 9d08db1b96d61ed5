#include "client/ctl/command.h"

#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/cost/device_model.h"
#include "passes/io/plan_file.h"
#include "passes/io/profile_json.h"
#include "passes/ir/canonical.h"
#include "passes/plan/raw_ids.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"

namespace bucketd::ctl {
namespace {

Json CollectivesJson(const Graph& graph, const Plan& plan) {
  std::map<absl::string_view, int> count;
  for (const Step& step : plan.order) {
    if (step.kind == Step::Kind::kWait) continue;
    NodeId n = step.id;
    if (step.kind == Step::Kind::kStart) {
      n = plan.buckets[static_cast<size_t>(step.id)].members.front();
    } else if (graph.kind(n) != NodeKind::kCollective) {
      continue;
    }
    ++count[ShortName(graph.collective(graph.collective_of(n)).kind)];
  }
  Json object = Json::Object({});
  for (const auto& [kind, number] : count) object.Set(kind, number);
  return object;
}

// What the file states, for the normalised graph: what was inserted costs nothing here.
StatedCosts OfNormalized(const CapturedGraph& captured, const NormalizedGraph& normalized) {
  StatedCosts stated;
  if (!captured.has_costs) return stated;
  stated.links = captured.costs.links;
  for (const NodeId raw : normalized.raw_id) {
    stated.node_us.push_back(raw == kNoNode ? 0.0
                                            : captured.costs.node_us[static_cast<size_t>(raw)]);
  }
  return stated;
}

}  // namespace

absl::StatusOr<CostProfile> ProfileOf(const CostFlags& flags) {
  absl::StatusOr<CostProfile> profile = FindProfile(flags.profile);
  if (profile.ok()) return profile;
  return absl::Status(profile.status().code(),
                      absl::StrCat("--profile: ", profile.status().message()));
}

absl::StatusOr<Input> Load(const std::string& graph_path, const CostFlags& flags) {
  ASSIGN_OR_RETURN(const CostProfile profile, ProfileOf(flags));
  if (flags.of != "file" && flags.of != "profile") {
    return absl::OutOfRangeError(
        absl::StrCat("--costs: \"", flags.of, "\"; expected file or profile"));
  }
  ASSIGN_OR_RETURN(CapturedGraph captured, ReadCapturedGraphFile(graph_path));
  if (flags.of == "profile") captured.has_costs = false;
  return InputOf(std::move(captured), profile, graph_path);
}

absl::StatusOr<Input> InputOf(CapturedGraph captured, const CostProfile& profile,
                              const std::string& source) {
  const auto in_file = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
  };
  absl::StatusOr<NormalizedGraph> normalized = Normalize(captured.graph);
  if (!normalized.ok()) return in_file(normalized.status());
  // Measured rows win over what the file states, as they do over the device model.
  if (captured.has_costs) {
    UseMeasuredLinks(captured.graph, captured.mesh, profile, captured.costs);
  }
  const auto resolve = [&](const Graph& graph, StatedCosts stated) {
    if (!captured.has_costs) return Costs::FromDeviceModel(graph, captured.mesh, profile);
    UseMeasuredKernels(graph, profile, stated);
    return Costs::FromFile(graph, stated, profile);
  };
  absl::StatusOr<Costs> costs = resolve(captured.graph, captured.costs);
  if (!costs.ok()) return in_file(costs.status());
  absl::StatusOr<Costs> shared = resolve(normalized->graph, OfNormalized(captured, *normalized));
  if (!shared.ok()) return in_file(shared.status());
  const Digest digest = GraphDigest(normalized->graph);
  return Input{std::move(captured), *std::move(normalized), *std::move(costs),
               *std::move(shared),  profile.name,           digest};
}

Plan WithFigures(const Input& input, Plan plan) {
  const Graph& graph = input.captured.graph;
  Predict(graph, input.costs, plan);
  plan.program_order = Simulate(graph, ProgramOrder(graph), input.costs).prediction;
  plan.lower_bound_ps = LowerBoundPs(graph, input.costs);
  return plan;
}

void NoteOtherCosts(const Input& input, const Plan& plan) {
  const std::string ours(input.costs.profile_id());
  if (plan.cost_profile.empty() || plan.cost_profile == ours) return;
  std::fprintf(stderr, "figures are by %s; the plan was made by %s (--profile, --costs)\n",
               ForTerminal(ours).c_str(), ForTerminal(plan.cost_profile).c_str());
}

absl::StatusOr<Plan> ForFile(const Input& input, Plan plan) {
  plan.graph_digest = input.digest;
  ToRawIds(input.captured.graph, input.normalized, plan);
  RETURN_IF_ERROR(VerifyPlan(input.captured.graph, plan));
  return WithFigures(input, std::move(plan));
}

absl::StatusOr<Plan> PlanHere(const Input& input, const PlanOptions& options) {
  ASSIGN_OR_RETURN(Plan plan, MakePlan(input.normalized.graph, input.normalized_costs, options));
  return ForFile(input, std::move(plan));
}

absl::StatusOr<Plan> LoadPlan(const Input& input, const std::string& path) {
  if (path.empty()) return ProgramOrder(input.captured.graph);
  ASSIGN_OR_RETURN(PlanFile file, ReadPlanFile(path));
  RETURN_IF_ERROR(CheckPlan(input, path, file.plan));
  return std::move(file.plan);
}

absl::Status CheckPlan(const Input& input, const std::string& path, const Plan& plan) {
  const Graph& graph = input.captured.graph;
  // A plan that was written by hand need not say what it was made for.
  if (plan.graph_digest != Digest{} && plan.graph_digest != input.digest) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": made for graph ",
                                                      ToHex(plan.graph_digest),
                                                      ", but this one is ", ToHex(input.digest)));
  }
  if (plan.node_count != 0 && plan.node_count != graph.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": speaks the ids of ", plan.node_count, " nodes, but the file has ", graph.size(),
        plan.node_count == input.normalized.graph.size() ? "; it was made for the normalised graph"
                                                         : ""));
  }
  const absl::Status legal = VerifyPlan(graph, plan);
  if (legal.ok()) return legal;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": not a legal plan for this graph\n", legal.message()));
}

Json FiguresJson(const Input& input, const Plan& plan) {
  const Graph& graph = input.captured.graph;
  const Simulation simulation = Simulate(graph, plan, input.costs);
  const Prediction& p = simulation.prediction;
  return Json::Object({{"total_us", Json::Us(p.total_ps)},
                       {"exposed_us", Json::Us(p.exposed_ps)},
                       {"compute_us", Json::Us(p.compute_ps)},
                       {"comm_us", Json::Us(p.comm_ps)},
                       {"busiest_group_us", Json::Us(p.busiest_group_ps)},
                       {"copies_us", Json::Us(p.copies_ps)},
                       {"peak_bytes", p.peak_bytes},
                       {"peak_at", simulation.peak_at.empty() ? Json() : Json(simulation.peak_at)},
                       {"collectives", CollectivesJson(graph, plan)}});
}

Json DiagnosticsJson(const Plan& plan) {
  return Json::List(plan.diagnostics, [](const Diagnostic& d) {
    return Json::Object({{"code", d.code}, {"text", d.text}, {"nodes", Json::List(d.nodes)}});
  });
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

void AddGraphArgument(const Command& command, std::string& graph) {
  command.AddOption("graph", graph, "captured graph, JSON or gzip").Required().TypeName("GRAPH");
}

void AddProfileFlag(const Command& command, std::string& profile) {
  command
      .AddOption("--profile", profile,
                 "cost profile: h100_nvlink, h100_launch, slow_network, small_batch, "
                 "cpu_loopback, or a JSON file")
      .ShowDefault();
}

Flag AddCostsFlag(const Command& command, std::string& of) {
  return command
      .AddOption(
          "--costs", of,
          "whose costs: those that the file states, scaled by the profile, if it states any; "
          "or the profile's, as a server takes them")
      .TypeName("file | profile")
      .ShowDefault();
}

void AddJsonFlag(const Command& command, bool& json) {
  command.AddFlag("--json", json, "one JSON object on stdout");
}

}  // namespace bucketd::ctl
