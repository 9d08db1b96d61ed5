#include "client/ctl/command.h"

#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/cost/device_model.h"
#include "passes/io/plan_file.h"
#include "passes/io/profile_json.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "passes/plan/verify.h"

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

}  // namespace

absl::StatusOr<Input> Load(const std::string& graph_path, const std::string& profile_name) {
  absl::StatusOr<CostProfile> profile = FindProfile(profile_name);
  if (!profile.ok()) {
    return absl::NotFoundError(absl::StrCat("--profile: ", profile.status().message()));
  }
  ASSIGN_OR_RETURN(CapturedGraph captured, ReadCapturedGraphFile(graph_path));
  // Measured rows win over what the file states, as they do over the device model.
  if (captured.has_costs) {
    UseMeasuredLinks(captured.graph, captured.mesh, *profile, captured.costs);
  }
  absl::StatusOr<Costs> costs =
      captured.has_costs ? Costs::FromFile(captured.graph, captured.costs, *profile)
                         : Costs::FromDeviceModel(captured.graph, captured.mesh, *profile);
  if (!costs.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(graph_path, ": ", costs.status().message()));
  }
  const absl::StatusOr<NormalizedGraph> normalized = Normalize(captured.graph);
  if (!normalized.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(graph_path, ": ", normalized.status().message()));
  }
  const Digest digest = GraphDigest(normalized->graph);
  return Input{std::move(captured), *std::move(costs), digest, normalized->graph.size()};
}

absl::StatusOr<Plan> LoadPlan(const Input& input, const std::string& path) {
  const Graph& graph = input.captured.graph;
  if (path.empty()) return ProgramOrder(graph);
  ASSIGN_OR_RETURN(PlanFile file, ReadPlanFile(path));
  Plan& plan = file.plan;
  // A plan that was written by hand need not say what it was made for.
  if (plan.graph_digest != Digest{} && plan.graph_digest != input.digest) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": made for graph ",
                                                      ToHex(plan.graph_digest),
                                                      ", but this one is ", ToHex(input.digest)));
  }
  if (plan.node_count != 0 && plan.node_count != graph.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": speaks the ids of ", plan.node_count, " nodes, but the file has ", graph.size(),
        plan.node_count == input.canonical_size ? "; it was made for the normalised graph" : ""));
  }
  const absl::Status legal = VerifyPlan(graph, plan);
  if (!legal.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a legal plan for this graph\n", legal.message()));
  }
  return std::move(plan);
}

Json FiguresJson(const Graph& graph, const Plan& plan, const Simulation& simulation) {
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

void AddJsonFlag(const Command& command, bool& json) {
  command.AddFlag("--json", json, "one JSON object on stdout");
}

}  // namespace bucketd::ctl
