#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"
#include "client/ctl/fsdp_advice.h"
#include "client/ctl/traced_step.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"

namespace bucketd::ctl {
namespace {

struct AdviseArgs {
  std::vector<std::string> graphs, kept;
  std::string trace, units, memory_limit;
  CostFlags costs;
  int32_t ranks_per_node = 0;
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
absl::Status CheckKept(const AdviseArgs& args, const absl::StatusOr<bool>& again,
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

// What is advised on: graphs of a step, or a trace of one.
struct AdvisedStep {
  StepGraphs graphs, kept;
  absl::StatusOr<bool> again = false;  // GathersAgain(graphs)
  std::optional<TracedStep> traced;    // without its graphs
};

void PrintJson(const AdvisedStep& step, const Advice& advice) {
  const auto sharding = [&](const Sharding& s) { return ShardingJson(s, step.again); };
  Json object = Json::Object(
      {{"graphs", Json::List(step.graphs, [](const Input& i) { return i.captured.graph.name(); })},
       {"digests", Json::List(step.graphs, [](const Input& i) { return ToHex(i.digest); })},
       {"cost_profile", step.graphs.front().costs.profile_id()},
       {"memory_limit_bytes", advice.limit_bytes},
       {"now", sharding(advice.now())},
       {"advised", sharding(advice.advised())},
       {"tried", Json::List(advice.tried, sharding)}});
  if (step.traced.has_value()) {
    object.Set("trace", Json::Object({{"steps", step.traced->steps},
                                      {"step_us", Json::Us(step.traced->total_ps)},
                                      {"waits_at_launch", step.traced->options.waits_at_launch}}));
  }
  Print(object.Text());
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

// What a trace tells and what it does not.
std::string TraceText(const TracedStep& traced) {
  return absl::StrCat(
      "traced: one step of ", traced.steps, ", ", Duration(traced.total_ps),
      traced.options.waits_at_launch
          ? "; the host stood until each collective was over, so prefetching hides nothing"
          : "",
      "\nnot in a trace: activations (peak memory is gathered parameters and gradients alone), "
      "modules inside of units (which are not halved)\n");
}

void PrintText(const AdvisedStep& step, const Advice& advice) {
  Table table("llrrrrrrrr", {"", "units", "number", "forward", "backward", "reshard", "step time",
                             "change", "exposed", "peak memory"});
  for (size_t i = 0; i < advice.tried.size(); ++i) {
    const std::string mark = absl::StrCat(i == 0 ? "now" : "", i == advice.best ? "*" : "");
    table.AddRow(Cells(mark, advice.tried[i], advice, step.again));
  }
  const std::string text = absl::StrCat(
      step.graphs.front().captured.graph.name(), ", cost profile ",
      step.graphs.front().costs.profile_id(), ", memory limit ", Mib(advice.limit_bytes), "\n",
      step.traced.has_value() ? TraceText(*step.traced) : std::string(), "\n", table.Text(),
      "* advised: the fastest that fits, where it saves half a percent; forward, backward: units "
      "to prefetch, 1 as FSDP2 does unasked\n"
      "apply it with bucketd.apply_to_fully_shard(model, FILE), where FILE is the output of "
      "--json\n");
  Print(ForTerminal(text));
}

absl::StatusOr<AdvisedStep> LoadGraphs(const AdviseArgs& args) {
  AdvisedStep step;
  ASSIGN_OR_RETURN(step.graphs, LoadAll(args.graphs, args.costs));
  ASSIGN_OR_RETURN(step.kept, LoadAll(args.kept, args.costs));
  step.again = GathersAgain(step.graphs);
  RETURN_IF_ERROR(CheckKept(args, step.again, step.kept));
  return step;
}

absl::StatusOr<AdvisedStep> LoadTrace(const AdviseArgs& args) {
  ASSIGN_OR_RETURN(TracedStep traced, LoadTracedStep(args.trace, args.costs, args.ranks_per_node));
  AdvisedStep step;
  step.graphs = std::move(traced.step);
  step.kept = std::move(traced.kept);
  step.again = GathersAgain(step.graphs);
  step.traced = std::move(traced);
  return step;
}

// A prediction of what was traced that is far off says that the links are other ones.
void NoteFarOff(const TracedStep& traced, int64_t predicted_ps) {
  if (std::abs(predicted_ps - traced.total_ps) * 4 <= traced.total_ps) return;
  std::fprintf(stderr,
               "the traced step took %s, and is predicted to take %s: ranks waited for each other, "
               "or --profile has not this machine's links (bucketctl costs import-trace)\n",
               Duration(traced.total_ps).c_str(), Duration(predicted_ps).c_str());
}

absl::Status Run(const AdviseArgs& args) {
  const bool is_trace = !args.trace.empty();
  if (is_trace == !args.graphs.empty()) {
    return absl::OutOfRangeError("expected the graphs of a step, or --trace");
  }
  ASSIGN_OR_RETURN(const AdvisedStep step, is_trace ? LoadTrace(args) : LoadGraphs(args));
  AdviceOptions options = is_trace ? step.traced->options : AdviceOptions{.units = args.units};
  options.memory_limit = args.memory_limit;
  ASSIGN_OR_RETURN(const Advice advice, AdviseFullyShard(step.graphs, step.kept, options));
  if (is_trace) NoteFarOff(*step.traced, advice.now().total_ps);
  if (args.json) {
    PrintJson(step, advice);
  } else {
    PrintText(step, advice);
  }
  return absl::OkStatus();
}

}  // namespace

void AddAdviseCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<AdviseArgs>(
      "advise", "Say how to wrap and prefetch with fully_shard (FSDP2), without a compiler", Run);
  command
      .AddOption("graph", args.graphs, "a step's captured graphs: joint, or forward and backward")
      .TypeName("GRAPH");
  command
      .AddOption("--kept", args.kept,
                 "the same step, captured with gathered parameters kept for the backward: whether "
                 "to reshard after the forward is then advised, too; once a graph")
      .TypeName("GRAPH")
      .OneValueEach();
  command
      .AddOption("--units", args.units,
                 "what is wrapped now: entries separated by commas, a+b for fully_shard([a, b]), "
                 "layers.[0-31] counts; else transformer blocks and what is around them")
      .TypeName("ENTRIES");
  command
      .AddOption("--trace", args.trace,
                 "instead of graphs: a step that fully_shard ran, of any one rank, as "
                 "torch.profiler's export_chrome_trace wrote it (record_shapes=True)")
      .TypeName("TRACE")
      .Excludes({"graph", "--kept", "--units"});
  command.AddOption("--ranks-per-node", args.ranks_per_node, "of the traced job [all of its ranks]")
      .InRange(1, 1 << 20)
      .TypeName("N")
      .Needs("--trace");
  command.AddOption("--memory-limit", args.memory_limit,
                    "peak memory that is allowed: 1.05x and +5% of the present wrapping's, 38GiB, "
                    "bytes [1.05x]");
  AddProfileFlag(command, args.costs.profile);
  AddCostsFlag(command, args.costs.of);
  AddJsonFlag(command, args.json);
  command.Footer(
      "Example: what FSDP2 would gain, from the graphs of a step that was captured once:\n"
      "  bucketctl advise llama3_8b_fsdp8.fw.json.gz llama3_8b_fsdp8.bw.json.gz --kept "
      "llama3_8b_fsdp8.joint.json.gz\n"
      "Example: for a script, on a slow network, with what is wrapped today:\n"
      "  bucketctl advise step.joint.json.gz --units 'tok_embeddings,layers.*,norm+output' "
      "--profile slow_network --json > advice.json\n"
      "Example: from traces of a training without a compiler, with links as they show them:\n"
      "  bucketctl costs import-trace rank*.json.gz --out links.json\n"
      "  bucketctl advise --trace rank0.json.gz --profile links.json --memory-limit 2x");
}

}  // namespace bucketd::ctl
