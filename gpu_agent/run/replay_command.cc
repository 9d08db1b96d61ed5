#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/json.h"

#include "gpu_agent/run/command.h"
#include "gpu_agent/run/replay.h"
#include "gpu_agent/run/replay_plan.h"
#include "gpu_agent/run/sweep.h"
#include "passes/base/status_macros.h"
#include "passes/io/chrome_trace.h"

namespace bucketd::agent {
namespace {

struct ReplayArgs {
  SessionOptions session;
  std::string plan, graph, profile, trace;
  int rounds = 10;
  bool json = false;
};

Json PartsJson(const PartTimes& times) {
  return Json::Object({{"copy_in", Json::Us(times.copy_in_ps)},
                       {"wire", Json::Us(times.wire_ps)},
                       {"copy_out", Json::Us(times.copy_out_ps)}});
}

int64_t Sum(const PartTimes& times) { return times.copy_in_ps + times.wire_ps + times.copy_out_ps; }

void PrintJson(const ReplayArgs& args, const std::string& backend, const ReplayPlan& plan,
               const ReplayResult& result) {
  std::vector<Json> buckets;
  for (size_t k = 0; k < result.buckets.size(); ++k) {
    const BucketSpec& spec = plan.spec.buckets[k];
    buckets.push_back(Json::Object({{"bucket", k},
                                    {"planned", k < plan.plan.buckets.size()},
                                    {"name", spec.name},
                                    {"kind", Name(spec.kind)},
                                    {"mode", Name(spec.mode)},
                                    {"dtype", Name(spec.dtype)},
                                    {"members", spec.counts.size()},
                                    {"bytes", FullBytes(spec)},
                                    {"predicted_us", Json::Us(Sum(plan.predicted[k]))},
                                    {"measured_us", Json::Us(Sum(result.buckets[k]))},
                                    {"predicted", PartsJson(plan.predicted[k])},
                                    {"measured", PartsJson(result.buckets[k])}}));
  }
  const Json object = Json::Object({{"plan", args.plan},
                                    {"backend", backend},
                                    {"ranks", args.session.ranks},
                                    {"rounds", args.rounds},
                                    {"predicted_us", Json::Us(plan.predicted_total_ps)},
                                    {"measured_us", Json::Us(result.total_ps)},
                                    {"round_us", Json::List(result.round_ps, &Json::Us)},
                                    {"buckets", Json::List(buckets)}});
  std::fputs(object.Text().c_str(), stdout);
}

std::string Change(int64_t measured, int64_t predicted) {
  if (predicted == 0) return "";
  return absl::StrFormat(
      "%+.1f %%", (static_cast<double>(measured) / static_cast<double>(predicted) - 1.0) * 100.0);
}

void PrintTable(const ReplayPlan& plan, const ReplayResult& result) {
  std::printf("%-8s %-15s %-8s %8s %12s %13s %13s %9s\n", "bucket", "kind", "mode", "members",
              "bytes", "predicted us", "measured us", "");
  for (size_t k = 0; k < result.buckets.size(); ++k) {
    const BucketSpec& spec = plan.spec.buckets[k];
    const int64_t predicted = Sum(plan.predicted[k]), measured = Sum(result.buckets[k]);
    std::printf("%-8s %-15s %-8s %8zu %12lld %13.1f %13.1f %9s\n",
                k < plan.plan.buckets.size() ? absl::StrCat(k).c_str() : "-",
                std::string(Name(spec.kind)).c_str(), std::string(Name(spec.mode)).c_str(),
                spec.counts.size(), static_cast<long long>(FullBytes(spec)), Us(predicted),
                Us(measured), Change(measured, predicted).c_str());
  }
  std::printf("%-57s %13.1f %13.1f %9s\n", "step", Us(plan.predicted_total_ps), Us(result.total_ps),
              Change(result.total_ps, plan.predicted_total_ps).c_str());
}

absl::Status Run(const ReplayArgs& args, const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(const ReplayPlan plan, LoadReplayPlan(args.plan, args.graph, args.profile));
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Open(args.session, arguments));
  ASSIGN_OR_RETURN(const ReplayResult result, Replay(*session, plan, args.rounds));
  if (session->rank() != 0) return absl::OkStatus();
  RETURN_IF_ERROR(session->Join());
  if (args.json) {
    PrintJson(args, session->backend(), plan, result);
  } else {
    PrintTable(plan, result);
  }
  if (args.trace.empty()) return absl::OkStatus();
  const std::string title =
      absl::StrFormat("measured: %.3f ms, rank 0, last round", Us(result.round_ps.back()) * 1e-3);
  RETURN_IF_ERROR(WriteFile(args.trace, MeasuredChromeTrace(plan.graph, plan.plan, plan.costs,
                                                            title, result.last_round)));
  std::fprintf(stderr, "trace: %s (open it in ui.perfetto.dev)\n", args.trace.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddReplayCommand(const Command& app, const std::vector<std::string>& arguments) {
  auto args = std::make_shared<ReplayArgs>();
  const Command command = app.AddCommand(
      "replay", "Run a plan's collectives on this machine, with timers in the place of compute");
  AddSessionFlags(command, args->session);
  command.AddOption("--plan", args->plan, "plan file, JSON or binary").Required().TypeName("PLAN");
  command.AddOption("--graph", args->graph, "captured graph that the plan is for, JSON or gzip")
      .Required()
      .TypeName("GRAPH");
  command
      .AddOption("--profile", args->profile,
                 "cost profile of the prediction and of the compute between: a built-in name, or "
                 "a JSON file, as bucket-agent calibrate writes it")
      .Required();
  command.AddOption("--rounds", args->rounds, "steps that count, after one to warm up")
      .InRange(1, 100'000)
      .ShowDefault();
  command.AddFlag("--json", args->json, "one JSON object on stdout");
  command
      .AddOption("--trace", args->trace,
                 "where a Chrome trace goes: the prediction, and the last round beside it")
      .TypeName("FILE");
  command.Footer(
      "Figures are medians of the rounds. Example:\n"
      "  bucket-agent calibrate --ranks 2 --profile-out here.json\n"
      "  bucketctl plan step.json.gz --profile here.json --plan-out plan.json\n"
      "  bucket-agent replay --plan plan.json --graph step.json.gz --profile here.json --ranks 2");
  command.Does([args, &arguments] { return Report(AsAbsence(Run(*args, arguments))); });
}

}  // namespace bucketd::agent
