#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/ctl/bucket_story.h"
#include "client/ctl/command.h"
#include "client/ctl/explain.h"
#include "client/render/plan_report.h"

#include "passes/base/status_macros.h"
#include "passes/io/json_text.h"

namespace bucketd::ctl {
namespace {

struct Args {
  std::string graph, plan, a, b, profile = kDefaultProfile;
  bool json = false;
};

absl::StatusOr<std::string> Explain(const Args& args) {
  ASSIGN_OR_RETURN(const Input input, Load(args.graph, args.profile));
  ASSIGN_OR_RETURN(const Plan plan, LoadPlan(input, args.plan));
  ASSIGN_OR_RETURN(const Explainer explainer,
                   Explainer::Make(input.captured.graph, plan, input.costs));
  const BucketStories stories(input.captured.graph, plan, input.costs);
  if (args.a.empty()) {
    return absl::StrCat("mode ", plan.mode, ", numerics ", Name(plan.numerics), " on ",
                        plan.backend, "\n\n", explainer.Buckets(), "\n", stories.All(), "\n",
                        explainer.Alone(), DiagnosticLines(plan));
  }
  ASSIGN_OR_RETURN(const CollectiveId a, explainer.Find(args.a));
  if (args.b.empty()) {
    const BucketId bucket = explainer.BucketOf(a);
    return absl::StrCat(explainer.One(a), bucket < 0 ? "" : stories.Of(bucket));
  }
  ASSIGN_OR_RETURN(const CollectiveId b, explainer.Find(args.b));
  return explainer.Two(a, b);
}

absl::Status Run(const Args& args) {
  ASSIGN_OR_RETURN(std::string text, Explain(args));
  if (args.json) text = absl::StrCat("{\"explanation\": ", internal::Quoted(text), "}\n");
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddExplainCommand(CLI::App& app, int& exit) {
  auto args = std::make_shared<Args>();
  CLI::App* command = app.add_subcommand(
      "explain", "Say why buckets are as they are, or why two collectives are not together");
  command->add_option("graph", args->graph, "captured graph, JSON or gzip")
      ->required()
      ->type_name("GRAPH");
  command->add_option("plan", args->plan, "plan file")->required()->type_name("PLAN");
  command
      ->add_option("a", args->a, "a collective: its id or name, its parameter's FQN, or bucket:K")
      ->type_name("A");
  command->add_option("b", args->b, "another one: why are the two not together?")->type_name("B");
  command->add_option("--profile", args->profile, kProfileHelp)->capture_default_str();
  command->add_flag("--json", args->json, "one JSON object on stdout");
  command->footer(
      "Example: every bucket, then two of them:\n"
      "  bucketctl explain step.bw.json.gz plan.json\n"
      "  bucketctl explain step.bw.json.gz plan.json bucket:3 bucket:4");
  command->callback([args, &exit] { exit = Report(Run(*args)); });
}

}  // namespace bucketd::ctl
