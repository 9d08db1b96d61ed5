#include "client/ctl/fsdp_advice.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/ctl/plan_flags.h"

#include "passes/base/status_macros.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/tags.h"
#include "passes/planner.h"

namespace bucketd::ctl {
namespace {

constexpr int32_t kFarthest = 3;  // units ahead: beyond, memory grows and nothing is left to hide
constexpr int64_t kNoLimit = int64_t{1} << 60;  // the most that options take

constexpr int64_t kWorthwhile = 995;  // per mille of the present step: costs are not known better

// A unit, and how many bytes each of its parameters' gathers make, by first use.
struct Wrapped {
  std::vector<std::string> modules;
  std::vector<std::pair<std::string, int64_t>> parameters;
};

bool IsGather(const Graph& graph, CollectiveId c) {
  return graph.collective(c).kind == CollectiveKind::kAllGather;
}

// As a plan's units are found: blocks, or the given entries. Of the graph that says in what order
// modules are used.
absl::StatusOr<std::vector<Wrapped>> UnitsOf(const StepGraphs& step, const std::string& units) {
  const auto with_forward =
      absl::c_find_if(step, [](const Input& input) { return input.captured.kind != "bw"; });
  if (with_forward == step.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(step.front().captured.graph.name(), " is a backward: give its forward, too"));
  }
  const Input& input = *with_forward;
  const Graph& graph = input.normalized.graph;
  PlanOptions options;
  options.mode = units.empty() ? "transformer_block" : "manual";
  options.buckets = units;
  RETURN_IF_ERROR(AsUsage(options.Validate()));
  PassContext context(graph, input.normalized_costs, options);
  Plan unused = ProgramOrder(graph);
  for (const absl::string_view name :
       {absl::string_view("tag-collectives"),
        absl::string_view(units.empty() ? "find-blocks" : "read-entries")}) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Pass> pass, MakePass(name));
    RETURN_IF_ERROR(pass->Run(context, unused).status());
  }
  std::vector<Wrapped> found;
  std::string mesh_dim;
  for (const Unit& unit : context.units) {
    Wrapped wrapped{absl::StrSplit(unit.name, '+'), {}};
    for (const CollectiveId c : unit.collectives) {
      if (!IsGather(graph, c)) continue;
      const std::string& dim = graph.group(graph.collective(c)).mesh_dim;
      if (!mesh_dim.empty() && dim != mesh_dim) {
        return absl::FailedPreconditionError(
            absl::StrCat(graph.name(), ": parameters are gathered over ", mesh_dim, " and over ",
                         dim, ": what is wrapped over two meshes is not advised on yet"));
      }
      mesh_dim = dim;
      const std::string name(context.tags[c].parameter);
      const bool known =
          absl::c_any_of(wrapped.parameters, [&](const auto& p) { return p.first == name; });
      if (!known) wrapped.parameters.emplace_back(name, graph.collective(c).bytes);
    }
    if (!wrapped.parameters.empty()) found.push_back(std::move(wrapped));
  }
  if (found.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        graph.name(), units.empty() ? ": no parameters are gathered: there is nothing to wrap"
                                    : ": no entry of --units holds a parameter that is gathered"));
  }
  return found;
}

// "layers.7": a module that has others like it.
bool IsBlock(const Wrapped& unit) {
  const std::string& name = unit.modules.front();
  const size_t dot = name.rfind('.');
  return unit.modules.size() == 1 && dot != std::string::npos && dot + 1 < name.size() &&
         std::all_of(name.begin() + static_cast<ptrdiff_t>(dot) + 1, name.end(),
                     absl::ascii_isdigit);
}

std::string RowOf(const Wrapped& unit) {
  return unit.modules.front().substr(0, unit.modules.front().rfind('.'));
}

// Children of a block, in two runs of about as many bytes; the block itself where it has parameters
// of its own or one child.
std::vector<std::vector<std::string>> Halves(const Wrapped& block) {
  const std::string prefix = absl::StrCat(block.modules.front(), ".");
  std::vector<std::pair<std::string, int64_t>> children;
  int64_t all = 0;
  for (const auto& [parameter, bytes] : block.parameters) {
    const size_t dot = parameter.find('.', prefix.size());
    if (!absl::StartsWith(parameter, prefix) || dot == std::string::npos) return {block.modules};
    const std::string child = parameter.substr(0, dot);
    const auto known = absl::c_find_if(children, [&](const auto& c) { return c.first == child; });
    if (known == children.end()) {
      children.emplace_back(child, bytes);
    } else {
      known->second += bytes;
    }
    all += bytes;
  }
  if (children.size() < 2) return {block.modules};
  size_t cut = 1;
  int64_t left = 0, least = kNoLimit;
  for (size_t i = 1; i < children.size(); ++i) {
    left += children[i - 1].second;
    const int64_t apart = std::abs(all - 2 * left);
    if (apart < least) least = apart, cut = i;
  }
  std::vector<std::vector<std::string>> halves(2);
  for (size_t i = 0; i < children.size(); ++i) halves[i < cut ? 0 : 1].push_back(children[i].first);
  return halves;
}

// As it is now, in halves of blocks, and in pairs of neighbouring blocks, where these differ.
std::vector<Sharding> Wrappings(const std::vector<Wrapped>& units, const std::string& name) {
  Sharding as_is{name, {}}, halves{"halves of blocks", {}}, pairs{"pairs of blocks", {}};
  bool joined = false;  // the last of `pairs` is a lone block
  for (size_t i = 0; i < units.size(); ++i) {
    as_is.units.push_back(units[i].modules);
    const bool block = IsBlock(units[i]);
    if (block) {
      for (auto& half : Halves(units[i])) halves.units.push_back(std::move(half));
    } else {
      halves.units.push_back(units[i].modules);
    }
    joined = block && joined && RowOf(units[i]) == RowOf(units[i - 1]);
    if (joined) {
      pairs.units.back().push_back(units[i].modules.front());
      joined = false;
    } else {
      pairs.units.push_back(units[i].modules);
      joined = block;
    }
  }
  std::vector<Sharding> found = {as_is};
  for (Sharding* other : {&halves, &pairs}) {
    if (other->units != as_is.units) found.push_back(std::move(*other));
  }
  return found;
}

// Each wait directly behind its launch. Legal: a launch has what it reads, and a wait came later.
std::vector<Step> WaitingAtLaunch(const Graph& graph, const std::vector<Step>& order) {
  std::vector<Step> waiting;
  for (const Step& step : order) {
    const bool node = step.kind == Step::Kind::kNode;
    if (step.kind == Step::Kind::kWait || (node && graph.kind(step.id) == NodeKind::kWait))
      continue;
    waiting.push_back(step);
    if (step.kind == Step::Kind::kStart) waiting.push_back({Step::Kind::kWait, step.id});
    if (!node || graph.kind(step.id) != NodeKind::kCollective) continue;
    const NodeId wait = graph.collective(graph.collective_of(step.id)).wait;
    if (wait != kNoNode) waiting.push_back({Step::Kind::kNode, wait});
  }
  return waiting;
}

absl::Status Predict(const StepGraphs& step, const AdviceOptions& advice, Sharding& sharding) {
  PlanOptions options;
  options.mode = "manual";
  options.buckets = absl::StrJoin(sharding.units, ",", [](std::string* out, const auto& modules) {
    absl::StrAppend(out, absl::StrJoin(modules, "+"));
  });
  options.prefetch_forward = sharding.prefetch_forward;
  options.prefetch_backward = sharding.prefetch_backward;
  options.memory_limit_bytes = kNoLimit;  // what a plan would change to keep one, FSDP2 would not
  sharding.total_ps = sharding.exposed_ps = sharding.peak_bytes = 0;
  for (const Input& input : step) {
    ASSIGN_OR_RETURN(Plan plan, PlanHere(input, options));
    if (advice.waits_at_launch) {
      plan.order = WaitingAtLaunch(input.captured.graph, plan.order);
      bucketd::Predict(input.captured.graph, input.costs, plan);
      plan.prediction.total_ps += advice.host_ps_per_launch * plan.prediction.collectives;
    }
    sharding.total_ps += plan.prediction.total_ps;
    sharding.exposed_ps += plan.prediction.exposed_ps;
    sharding.peak_bytes = std::max(sharding.peak_bytes, plan.prediction.peak_bytes);
  }
  return absl::OkStatus();
}

bool Better(const Sharding& a, const Sharding& b, int64_t limit) {
  const bool fits = a.peak_bytes <= limit;
  if (fits != (b.peak_bytes <= limit)) return fits;
  if (!fits) return a.peak_bytes < b.peak_bytes;
  return std::make_pair(a.total_ps, a.peak_bytes) < std::make_pair(b.total_ps, b.peak_bytes);
}

// The forward's distance and the backward's hardly meet: one after the other.
absl::StatusOr<Sharding> BestDistances(const StepGraphs& step, const AdviceOptions& options,
                                       Sharding from, int64_t limit) {
  RETURN_IF_ERROR(Predict(step, options, from));
  Sharding best = std::move(from);
  if (options.waits_at_launch) return best;
  for (int32_t Sharding::*distance : {&Sharding::prefetch_forward, &Sharding::prefetch_backward}) {
    for (int32_t ahead = 2; ahead <= kFarthest; ++ahead) {
      Sharding next = best;
      next.*distance = ahead;
      RETURN_IF_ERROR(Predict(step, options, next));
      if (Better(next, best, limit)) best = std::move(next);
    }
  }
  return best;
}

absl::StatusOr<int64_t> LimitOf(const std::string& text, int64_t peak_now) {
  PlanOptions options;  // its default is a share
  if (!text.empty()) RETURN_IF_ERROR(ParseMemoryLimit(text, options));
  if (options.memory_limit_bytes > 0) return options.memory_limit_bytes;
  return peak_now / 1'000'000 * options.memory_limit_ppm +
         peak_now % 1'000'000 * options.memory_limit_ppm / 1'000'000;
}

}  // namespace

absl::StatusOr<bool> GathersAgain(const StepGraphs& step) {
  bool backward = false;
  for (const Input& input : step) {
    const Graph& graph = input.normalized.graph;
    const std::vector<Direction> directions = CollectiveDirections(graph);
    const Tags tags = DeriveTags(graph);
    for (CollectiveId c = 0; c < static_cast<CollectiveId>(directions.size()); ++c) {
      if (directions[static_cast<size_t>(c)] != Direction::kBackward) continue;
      backward = true;
      if (tags[c].tag == Tag::kFsdpAllGather) return true;
    }
  }
  if (backward) return false;
  return absl::NotFoundError("no graph of the step has a backward");
}

absl::StatusOr<Advice> AdviseFullyShard(const StepGraphs& step, const StepGraphs& kept,
                                        const AdviceOptions& options) {
  const std::string& units = options.units;
  ASSIGN_OR_RETURN(const std::vector<Wrapped> wrapped, UnitsOf(step, units));
  if (!kept.empty()) {
    ASSIGN_OR_RETURN(const std::vector<Wrapped> same, UnitsOf(kept, units));
    if (!absl::c_equal(same, wrapped,
                       [](const Wrapped& a, const Wrapped& b) { return a.modules == b.modules; })) {
      return absl::InvalidArgumentError(absl::StrCat(kept.front().captured.graph.name(),
                                                     " wraps other modules than ",
                                                     step.front().captured.graph.name()));
    }
  }
  const std::vector<Sharding> wrappings = Wrappings(wrapped, units.empty() ? "blocks" : "as given");
  const absl::StatusOr<bool> again = GathersAgain(step);
  Sharding now = wrappings.front();
  now.keeps = again.ok() && !*again;
  RETURN_IF_ERROR(Predict(step, options, now));
  Advice advice;
  ASSIGN_OR_RETURN(advice.limit_bytes, LimitOf(options.memory_limit, now.peak_bytes));
  const bool fits = now.peak_bytes <= advice.limit_bytes;
  advice.tried.push_back(now);
  for (const StepGraphs* graphs : {&step, &kept}) {
    if (graphs->empty()) continue;
    for (Sharding from : wrappings) {
      from.keeps = now.keeps || graphs == &kept;
      ASSIGN_OR_RETURN(Sharding best,
                       BestDistances(*graphs, options, std::move(from), advice.limit_bytes));
      const bool worthwhile = !fits || best.total_ps <= now.total_ps / 1000 * kWorthwhile;
      if (worthwhile && Better(best, advice.advised(), advice.limit_bytes)) {
        advice.best = advice.tried.size();
      }
      advice.tried.push_back(std::move(best));
    }
  }
  return advice;
}

}  // namespace bucketd::ctl
