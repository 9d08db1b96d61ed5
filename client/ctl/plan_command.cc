#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/addresses.h"
#include "client/cli/tls_flags.h"
#include "client/client_tls.h"
#include "client/ctl/command.h"
#include "client/ctl/explain.h"
#include "client/ctl/front.h"
#include "client/ctl/plan_flags.h"
#include "client/ctl/standing.h"
#include "client/ctl/stick.h"
#include "client/ctl/ticker.h"
#include "client/errors.h"
#include "client/planner_client.h"
#include "client/remote_plan.h"
#include "client/render/plan_report.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/io/chrome_trace.h"
#include "passes/io/plan_json.h"

namespace bucketd::ctl {
namespace {

struct PlanArgs {
  PlanFlags flags;
  std::string plan_out, trace_out, server;
  client::ClientTls tls;
  StickArgs stick;
  bool pareto = false, json = false;
};

Json BucketsJson(const std::vector<BucketLine>& lines) {
  return Json::List(lines, [](const BucketLine& b) {
    return Json::Object({{"name", b.name},
                         {"kind", b.kind},
                         {"mesh_dim", b.mesh_dim},
                         {"members", b.members},
                         {"bytes", b.bytes},
                         {"mode", b.mode},
                         {"wire_us", Json::Us(b.wire_ps)}});
  });
}

std::vector<AloneGroup> AloneUnder(const Input& input, const Plan& plan) {
  const absl::StatusOr<Explainer> explainer =
      Explainer::Make(input.captured.graph, plan, input.costs);
  return explainer.ok() ? explainer->Alone() : std::vector<AloneGroup>{};
}

void PrintJson(const Input& input, const Chosen& chosen, double planning_ms) {
  const Graph& graph = input.captured.graph;
  const Plan& plan = chosen.planned;
  Json object = Json::Object({{"graph", graph.name()},
                              {"digest", ToHex(plan.graph_digest)},
                              {"nodes", graph.size()},
                              {"mode", plan.mode},
                              {"numerics", Name(plan.numerics)},
                              {"backend", plan.backend},
                              {"bits", Name(plan.bits)},
                              {"bits_text", plan.bits_text},
                              {"cost_profile", plan.cost_profile},
                              {"planning_ms", Json::Number(absl::StrFormat("%.3f", planning_ms))}});
  if (chosen.json) object.Set("stick_to", *chosen.json);
  object.Set("buckets", BucketsJson(DescribeBuckets(graph, plan)))
      .Set("alone", AloneJson(AloneUnder(input, plan)))
      .Set("planned", FiguresJson(input, plan))
      .Set("program_order", FiguresJson(input, ProgramOrder(graph)))
      .Set("lower_bound_us", Json::Us(plan.lower_bound_ps))
      .Merge(StandingJson(StandingOf(graph, plan, input.costs)))
      .Set("diagnostics", DiagnosticsJson(plan));
  Print(object.Text());
}

void PrintText(const Input& input, const Chosen& chosen, double planning_ms) {
  const Graph& graph = input.captured.graph;
  const Plan& plan = chosen.planned;
  const std::string text = absl::StrCat(
      graph.name(), " ", input.captured.kind, ": ", WithThousands(graph.size()), " nodes, ",
      graph.collectives().size(), " collectives, digest ", ToHex(plan.graph_digest).substr(0, 12),
      "\n", HowMade(plan, plan.cost_profile), "\n",
      graph.collectives().empty() ? "no collectives: nothing to put into buckets\n"
                                  : BucketTable(DescribeBuckets(graph, plan)),
      AloneText(AloneUnder(input, plan)), "\n", SummaryTable(plan), "\n",
      StandingText(StandingOf(graph, plan, input.costs)));
  Print(ForTerminal(text));
  std::fprintf(stderr, "%splanned in %.1f ms\n", ForTerminal(DiagnosticLines(plan)).c_str(),
               planning_ms);
}

absl::Status WriteOutputs(const PlanArgs& args, const Input& input, const Plan& plan) {
  const Graph& graph = input.captured.graph;
  if (!args.plan_out.empty()) {
    RETURN_IF_ERROR(WriteFile(args.plan_out, PlanToJson(graph, plan)));
    std::fprintf(stderr, "plan: %s\n", args.plan_out.c_str());
  }
  if (!args.trace_out.empty()) {
    RETURN_IF_ERROR(WriteFile(args.trace_out, ChromeTrace(graph, plan, input.costs)));
    std::fprintf(stderr, "trace: %s (open it in ui.perfetto.dev)\n", args.trace_out.c_str());
  }
  return absl::OkStatus();
}

// Nobody answers, or not in time: the same to whoever waits for a plan. What the server does not
// know is its refusal, not a mistake in the command line.
absl::Status AsReported(const absl::Status& status) {
  const bool busy = absl::IsDeadlineExceeded(status) || client::ReasonOf(status) == "OVERLOADED";
  if (busy) return absl::UnavailableError(status.message());
  if (client::ReasonOf(status) == "UNREACHABLE") {
    return absl::UnavailableError(absl::StrCat(
        status.message(),
        "\nDoes bucketd run there? --server says where to ask, --tls-ca and its kin how."));
  }
  return absl::IsNotFound(status) ? absl::FailedPreconditionError(status.message()) : status;
}

// The server takes its own costs. Figures are those of this process's profile of that name.
absl::StatusOr<Plan> PlanAt(const PlanArgs& args, const PlanOptions& options, const Input& input) {
  constexpr std::chrono::seconds kConnectTimeout(5), kDeadline(300);
  client::ClientOptions to;
  to.connect_timeout = kConnectTimeout;
  to.log = [](absl::string_view) {};  // what came of it is reported once, at the end
  to.tls = args.tls;
  client::PlannerClient planner(args.server, to);
  absl::StatusOr<Plan> plan =
      client::PlanCaptured(planner, input.captured, options, input.profile, kDeadline);
  if (!plan.ok()) return AsReported(plan.status());
  return WithFigures(input, *std::move(plan));
}

absl::StatusOr<Plan> MakeOrAsk(const PlanArgs& args, const PlanOptions& options,
                               const Input& input) {
  const Ticker ticker(absl::StrCat("planning ", WithThousands(input.captured.graph.size()),
                                   " nodes, mode ", options.mode, ", effort ", options.effort));
  if (!args.server.empty()) return PlanAt(args, options, input);
  return PlanHere(input, options);
}

absl::Status Run(const PlanArgs& args) {
  ASSIGN_OR_RETURN(const PlanOptions options, OptionsFrom(args.flags));
  RETURN_IF_ERROR(AsUsage(options.Validate()));
  CostFlags costs = args.flags.costs;
  if (!args.server.empty()) costs.of = "profile";
  ASSIGN_OR_RETURN(const Input input, Load(args.flags.graph, costs));
  if (args.pareto) return ShowFront(input, options, args.plan_out, args.json);
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<Plan> plan = MakeOrAsk(args, options, input);
  if (!plan.ok()) return plan.status();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  if (!args.server.empty()) NoteOtherCosts(input, *plan);
  ASSIGN_OR_RETURN(const Chosen chosen, StickTo(input, options, args.stick, *std::move(plan)));
  if (!chosen.verdict.empty()) std::fprintf(stderr, "%s\n", ForTerminal(chosen.verdict).c_str());
  RETURN_IF_ERROR(WriteOutputs(args, input, chosen.written));
  if (args.json) {
    PrintJson(input, chosen, took.count());
  } else {
    PrintText(input, chosen, took.count());
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(const Command& app) {
  const auto [command, args] =
      app.AddCommand<PlanArgs>("plan", "Plan a captured graph and show the plan", Run);
  AddPlanFlags(command, args.flags);
  AddCostsFlag(command, args.flags.costs.of);
  command.AddOption("--plan-out", args.plan_out, "write the plan there, as JSON");
  command.AddOption("--trace-out", args.trace_out,
                    "write the predicted timeline there, for ui.perfetto.dev");
  const Flag server =
      command
          .AddOption("--server", args.server,
                     "plan at a running bucketd, HOST:PORT or unix:/path, with its costs under "
                     "--profile, as --costs profile does here")
          .Checked(client::WrongInAddresses)
          .TypeName("ADDRESS")
          .Excludes({"--costs"});
  client::ClientTls& tls = args.tls;
  AddTlsFlags(command, {tls.ca, tls.certificate, tls.key, tls.token}, server);
  command
      .AddOption("--stick-to", args.stick.plan,
                 "keep that plan, written before, unless the new one gains enough")
      .TypeName("PLAN");
  command
      .AddOption("--stick-gain", args.stick.gain_percent,
                 "what is enough: percent of the old plan's step time")
      .Needs("--stick-to")
      .ShowDefault();
  command
      .AddFlag("--pareto", args.pareto,
               "plans from the least memory to no limit: the front of step time against peak "
               "memory; --plan-out numbers its files")
      .Excludes({"--server", "--stick-to", "--trace-out", "--memory-limit"});
  AddJsonFlag(command, args.json);
  command.Footer(
      "Example: a plan for a slow network, looked at in Perfetto:\n"
      "  bucketctl plan llama3_8b_fsdp8.bw.json.gz --profile slow_network --plan-out plan.json "
      "--trace-out trace.json\n"
      "Example: what more memory would buy, and each plan of it:\n"
      "  bucketctl plan llama3_8b_fsdp8.bw.json.gz --mode auto --pareto --plan-out front.json");
}

}  // namespace bucketd::ctl
