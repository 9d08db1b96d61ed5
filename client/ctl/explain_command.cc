#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/bucket_story.h"
#include "client/ctl/command.h"
#include "client/ctl/explain.h"
#include "client/render/plan_report.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"

namespace bucketd::ctl {
namespace {

struct ExplainArgs {
  std::string graph, plan, a, b;
  CostFlags costs;
  bool json = false;
};

// Every bucket as text and as a JSON object.
struct Whole {
  std::string text;
  Json json = Json::Object({});
};

Whole ExplainAll(const Input& input, const Plan& plan, const Explainer& explainer,
                 const BucketStories& stories) {
  const std::vector<BucketFacts> facts = explainer.Facts();
  const std::vector<BucketStory> told = stories.All();
  const std::vector<AloneGroup> alone = explainer.Alone();
  Whole whole;
  whole.text =
      absl::StrCat(HowMade(plan, input.costs.profile_id()), "\n", explainer.Buckets(facts), "\n");
  std::vector<Json> buckets;
  for (size_t b = 0; b < facts.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    buckets.push_back(Json::Object({{"bucket", b},
                                    {"name", bucket.name},
                                    {"kind", Name(facts[b].kind)},
                                    {"members", Json::List(bucket.members)},
                                    {"bytes", bucket.bytes},
                                    {"wire_us", Json::Us(facts[b].wire_ps)},
                                    {"exposed_us", Json::Us(facts[b].exposed_ps)},
                                    {"runs_beside", facts[b].beside},
                                    {"ends_because", facts[b].ends}}));
  }
  for (const BucketStory& story : told) {
    absl::StrAppend(&whole.text, stories.Text(story));
    buckets[static_cast<size_t>(story.bucket)]
        .Set("holds", story.members)
        .Set("form", story.form)
        .Set("begins", story.begins)
        .Set("larger", story.larger);
  }
  if (told.size() < facts.size()) {
    absl::StrAppend(&whole.text, "... and ", facts.size() - told.size(),
                    " more: name one, bucket:K\n");
  }
  absl::StrAppend(&whole.text, "\n", AloneText(alone), DiagnosticLines(plan));
  whole.json = Json::Object({{"mode", plan.mode},
                             {"numerics", Name(plan.numerics)},
                             {"backend", plan.backend},
                             {"bits", Name(plan.bits)},
                             {"bits_text", plan.bits_text},
                             {"cost_profile", input.costs.profile_id()},
                             {"buckets", Json::List(buckets)},
                             {"alone", AloneJson(alone)},
                             {"diagnostics", DiagnosticsJson(plan)}});
  return whole;
}

absl::StatusOr<Whole> Explain(const ExplainArgs& args) {
  ASSIGN_OR_RETURN(const Input input, Load(args.graph, args.costs));
  ASSIGN_OR_RETURN(const Plan plan, LoadPlan(input, args.plan));
  NoteOtherCosts(input, plan);
  ASSIGN_OR_RETURN(const Explainer explainer,
                   Explainer::Make(input.captured.graph, plan, input.costs));
  const BucketStories stories(input.captured.graph, plan, input.costs);
  if (args.a.empty()) return ExplainAll(input, plan, explainer, stories);
  ASSIGN_OR_RETURN(const CollectiveId a, explainer.Find(args.a));
  if (args.b.empty()) {
    const BucketId bucket = explainer.BucketOf(a);
    const std::string story = bucket < 0 ? "" : stories.Text(stories.Of(bucket));
    return Whole{absl::StrCat(explainer.One(a), story)};
  }
  ASSIGN_OR_RETURN(const CollectiveId b, explainer.Find(args.b));
  return Whole{explainer.Two(a, b)};
}

absl::Status Run(const ExplainArgs& args) {
  ASSIGN_OR_RETURN(const Whole said, Explain(args));
  const std::string json = Json(said.json).Set("explanation", said.text).Text();
  Print(args.json ? json : ForTerminal(said.text));
  return absl::OkStatus();
}

}  // namespace

void AddExplainCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<ExplainArgs>(
      "explain", "Say why buckets are as they are, or why two collectives are not together", Run);
  AddGraphArgument(command, args.graph);
  command.AddOption("plan", args.plan, "plan file").Required().TypeName("PLAN");
  command.AddOption("a", args.a, "a collective: its id or name, its parameter's FQN, or bucket:K")
      .TypeName("A");
  command.AddOption("b", args.b, "another one: why are the two not together?").TypeName("B");
  AddProfileFlag(command, args.costs.profile);
  AddCostsFlag(command, args.costs.of);
  AddJsonFlag(command, args.json);
  command.Footer(
      "Example: every bucket, then two of them:\n"
      "  bucketctl explain step.bw.json.gz plan.json\n"
      "  bucketctl explain step.bw.json.gz plan.json bucket:3 bucket:4");
}

}  // namespace bucketd::ctl
