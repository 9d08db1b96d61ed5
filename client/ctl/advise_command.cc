#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"
#include "client/ctl/fsdp_advice.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"

namespace bucketd::ctl {
namespace {

struct Args {
  std::vector<std::string> graphs, kept;
  std::string units, memory_limit;
  CostFlags costs;
  bool json = false;
};

absl::StatusOr<StepGraphs> LoadAll(const std::vector<std::string>& paths, const CostFlags& costs) {
  StepGraphs step;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(Input input, Load(path, costs));
    step.push_back(std::move(input));
  }
  return step;
}

// Whether the graphs are a step and the same one with its parameters kept.
absl::Status CheckKept(const Args& args, const absl::StatusOr<bool>& again,
                       const StepGraphs& kept) {
  if (kept.empty()) return absl::OkStatus();
  if (!again.ok() || !*again) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--kept: ", args.graphs.front(), " does not gather parameters again in a backward"));
  }
  ASSIGN_OR_RETURN(const bool kept_again, GathersAgain(kept));
  if (!kept_again) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--kept: ", args.kept.front(), " gathers parameters again in its backward"));
}

Json ShardingJson(const Sharding& sharding, const absl::StatusOr<bool>& again) {
  Json object = Json::Object({{"wrapping", sharding.wrapping},
                              {"units", Json::List(sharding.units,
                                                   [](const std::vector<std::string>& modules) {
                                                     return Json::List(modules);
                                                   })},
                              {"prefetch_forward", sharding.prefetch_forward},
                              {"prefetch_backward", sharding.prefetch_backward}});
  object.Set("reshard_after_forward", again.ok() ? Json(!sharding.keeps) : Json());
  return object.Set("step_us", Json::Us(sharding.total_ps))
      .Set("exposed_us", Json::Us(sharding.exposed_ps))
      .Set("peak_bytes", sharding.peak_bytes);
}

void PrintJson(const StepGraphs& step, const Advice& advice, const absl::StatusOr<bool>& again) {
  const auto sharding = [&](const Sharding& s) { return ShardingJson(s, again); };
  const Json object = Json::Object(
      {{"graphs", Json::List(step, [](const Input& i) { return i.captured.graph.name(); })},
       {"digests", Json::List(step, [](const Input& i) { return ToHex(i.digest); })},
       {"cost_profile", step.front().costs.profile_id()},
       {"memory_limit_bytes", advice.limit_bytes},
       {"now", sharding(advice.now())},
       {"advised", sharding(advice.advised())},
       {"tried", Json::List(advice.tried, sharding)}});
  std::fputs(object.Text().c_str(), stdout);
}

std::vector<std::string> Cells(const std::string& mark, const Sharding& sharding,
                               const Advice& advice, const absl::StatusOr<bool>& again) {
  const bool fits = sharding.peak_bytes <= advice.limit_bytes;
  return {mark,
          sharding.wrapping,
          absl::StrCat(sharding.units.size()),
          absl::StrCat(sharding.prefetch_forward),
          absl::StrCat(sharding.prefetch_backward),
          again.ok() ? (sharding.keeps ? "no" : "yes") : "",
          Duration(sharding.total_ps),
          Change(sharding.total_ps, advice.now().total_ps),
          Duration(sharding.exposed_ps),
          absl::StrCat(Mib(sharding.peak_bytes), fits ? "" : " (too much)")};
}

void PrintText(const StepGraphs& step, const Advice& advice, const absl::StatusOr<bool>& again) {
  using Align = Table::Align;
  Table table({{""},
               {"units"},
               {"number", Align::kRight},
               {"forward", Align::kRight},
               {"backward", Align::kRight},
               {"reshard", Align::kRight},
               {"step time", Align::kRight},
               {"change", Align::kRight},
               {"exposed", Align::kRight},
               {"peak memory", Align::kRight}});
  for (size_t i = 0; i < advice.tried.size(); ++i) {
    const std::string mark = absl::StrCat(i == 0 ? "now" : "", i == advice.best ? "*" : "");
    table.AddRow(Cells(mark, advice.tried[i], advice, again));
  }
  const std::string text = absl::StrCat(
      step.front().captured.graph.name(), ", cost profile ", step.front().costs.profile_id(),
      ", memory limit ", Mib(advice.limit_bytes), "\n\n", table.Text(),
      "* advised: the fastest that fits, where it saves half a percent; forward, backward: units "
      "to prefetch, 1 as FSDP2 does unasked\n"
      "apply it with bucketd.apply_to_fully_shard(model, FILE), where FILE is the output of "
      "--json\n");
  std::fputs(text.c_str(), stdout);
}

absl::Status Run(const Args& args) {
  ASSIGN_OR_RETURN(const StepGraphs step, LoadAll(args.graphs, args.costs));
  ASSIGN_OR_RETURN(const StepGraphs kept, LoadAll(args.kept, args.costs));
  const absl::StatusOr<bool> again = GathersAgain(step);
  RETURN_IF_ERROR(CheckKept(args, again, kept));
  ASSIGN_OR_RETURN(const Advice advice,
                   AdviseFullyShard(step, kept, args.units, args.memory_limit));
  if (args.json) {
    PrintJson(step, advice, again);
  } else {
    PrintText(step, advice, again);
  }
  return absl::OkStatus();
}

}  // namespace

void AddAdviseCommand(const Command& app) {
  auto args = std::make_shared<Args>();
  const Command command = app.AddCommand(
      "advise", "Say how to wrap and prefetch with fully_shard (FSDP2), without a compiler");
  command
      .AddOption("graph", args->graphs, "a step's captured graphs: joint, or forward and backward")
      .TypeName("GRAPH")
      .Required();
  command
      .AddOption("--kept", args->kept,
                 "the same step, captured with gathered parameters kept for the backward: whether "
                 "to reshard after the forward is then advised, too; once a graph")
      .TypeName("GRAPH")
      .OneValueEach();
  command
      .AddOption("--units", args->units,
                 "what is wrapped now: entries separated by commas, a+b for fully_shard([a, b]), "
                 "layers.[0-31] counts; else transformer blocks and what is around them")
      .TypeName("ENTRIES");
  command.AddOption("--memory-limit", args->memory_limit,
                    "peak memory that is allowed: 1.05x and +5% of the present wrapping's, 38GiB, "
                    "bytes [1.05x]");
  AddProfileFlag(command, args->costs.profile);
  AddCostsFlag(command, args->costs.of);
  AddJsonFlag(command, args->json);
  command.Footer(
      "Example: what FSDP2 would gain, from the graphs of a step that was captured once:\n"
      "  bucketctl advise llama3_8b_fsdp8.fw.json.gz llama3_8b_fsdp8.bw.json.gz --kept "
      "llama3_8b_fsdp8.joint.json.gz\n"
      "Example: for a script, on a slow network, with what is wrapped today:\n"
      "  bucketctl advise step.joint.json.gz --units 'tok_embeddings,layers.*,norm+output' "
      "--profile slow_network --json > advice.json");
  command.Does([args] { return Report(Run(*args)); });
}

}  // namespace bucketd::ctl
