#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/status_macros.h"
#include "passes/pass/passes.h"
#include "passes/pass/units/blocks.h"
#include "passes/pass/units/units.h"

namespace bucketd {
namespace {

// "layers.12" -> {"layers", 12}; {"", -1} for other names.
std::pair<absl::string_view, int32_t> Numbered(absl::string_view name) {
  const size_t dot = name.rfind('.');
  int32_t number = 0;
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(dot + 1), &number)) {
    return {"", -1};
  }
  return {name.substr(0, dot), number};
}

// "tok_embeddings; layers.0 to layers.31; norm+output": numbered neighbours are one item.
std::string Listed(absl::Span<const std::string> names) {
  std::vector<std::string> items;
  for (size_t i = 0; i < names.size();) {
    const auto [prefix, first] = Numbered(names[i]);
    size_t end = i + 1;
    while (first >= 0 && end < names.size() &&
           Numbered(names[end]) == std::make_pair(prefix, first + static_cast<int32_t>(end - i))) {
      ++end;
    }
    items.push_back(end - i < 3 ? absl::StrJoin(names.subspan(i, end - i), "; ")
                                : absl::StrCat(names[i], " to ", names[end - 1]));
    i = end;
  }
  return absl::StrJoin(items, "; ");
}

absl::Status ReadEntries(PassContext& context) {
  ASSIGN_OR_RETURN(std::vector<Entry> entries, ParseEntries(context.options.buckets));
  const std::vector<LabelUse> uses = LabelsInOrder(context);
  std::vector<absl::string_view> labels;
  labels.reserve(uses.size());
  for (const LabelUse& use : uses) labels.push_back(use.label);
  ASSIGN_OR_RETURN(entries, ExpandWildcards(std::move(entries), labels));
  return MatchEntries(entries, context);
}

// Fills units with the model's blocks and what lies around them. Names of those that were taken for
// blocks although no module has two of them.
absl::StatusOr<std::vector<std::string>> FindBlocksIn(PassContext& context) {
  const std::vector<LabelUse> labels = LabelsInOrder(context);
  std::vector<std::string> lone;
  context.units.clear();
  context.launches.clear();
  if (labels.empty()) return lone;
  ASSIGN_OR_RETURN(std::vector<FoundUnit> found, FindBlocks(labels));
  for (FoundUnit& unit : found) {
    std::vector<CollectiveId> collectives;
    for (const int32_t use : unit.uses) {
      const std::vector<CollectiveId>& of = labels[static_cast<size_t>(use)].collectives;
      collectives.insert(collectives.end(), of.begin(), of.end());
    }
    std::sort(collectives.begin(), collectives.end());
    if (unit.lone_block) lone.push_back(unit.name);
    context.units.push_back({std::move(unit.name), {}, std::move(collectives)});
  }
  return lone;
}

// Fills units: the model's blocks, and what lies around them. A graph without parameter collectives
// has none.
class FindBlocksPass : public Pass {
 public:
  absl::string_view name() const override { return "find-blocks"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    ASSIGN_OR_RETURN(const std::vector<std::string> lone, FindBlocksIn(context));
    if (context.units.empty()) return false;
    if (!lone.empty()) {
      plan.diagnostics.push_back(
          {"lone-block",
           absl::StrCat("no module has two numbered children; taken for blocks: ", Listed(lone)),
           {}});
    }
    RETURN_IF_ERROR(CheckCoverage(context, plan.diagnostics));
    plan.diagnostics.push_back(
        {"units", absl::StrCat(context.units.size(), " units: ", ListedUnits(context.units)), {}});
    return false;
  }
};

// Fills units from the entries that the caller wrote.
class ReadEntriesPass : public Pass {
 public:
  absl::string_view name() const override { return "read-entries"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    RETURN_IF_ERROR(ReadEntries(context));
    RETURN_IF_ERROR(CheckCoverage(context, plan.diagnostics));
    return false;
  }
};

}  // namespace

std::string ListedUnits(absl::Span<const Unit> units) {
  std::vector<std::string> names;
  for (const Unit& unit : units) names.push_back(unit.name);
  return Listed(names);
}

absl::Status FindUnits(PassContext& context) {
  const absl::Status found = FindBlocksIn(context).status();
  return found.ok() || context.options.buckets.empty() ? found : ReadEntries(context);
}

std::unique_ptr<Pass> MakeFindBlocksPass() { return std::make_unique<FindBlocksPass>(); }
std::unique_ptr<Pass> MakeReadEntriesPass() { return std::make_unique<ReadEntriesPass>(); }

}  // namespace bucketd
