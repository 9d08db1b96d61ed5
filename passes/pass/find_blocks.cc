#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/pass/blocks.h"
#include "passes/pass/passes.h"
#include "passes/pass/units.h"

namespace bucketd {
namespace {

// Fills units: the model's blocks, and what lies around them. A graph without parameter collectives
// has none.
class FindBlocksPass : public Pass {
 public:
  absl::string_view name() const override { return "find-blocks"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    const std::vector<LabelUse> labels = LabelsInOrder(context);
    if (labels.empty()) return false;
    std::vector<NamedUse> uses;
    uses.reserve(labels.size());
    for (const LabelUse& label : labels) uses.push_back({label.label, label.first_use});
    ASSIGN_OR_RETURN(std::vector<FoundUnit> found, FindBlocks(uses));
    std::vector<absl::string_view> names;
    for (FoundUnit& unit : found) {
      std::vector<CollectiveId> collectives;
      for (const int32_t use : unit.uses) {
        const std::vector<CollectiveId>& of = labels[static_cast<size_t>(use)].collectives;
        collectives.insert(collectives.end(), of.begin(), of.end());
      }
      std::sort(collectives.begin(), collectives.end());
      context.units.push_back({std::move(unit.name), {}, std::move(collectives)});
    }
    RETURN_IF_ERROR(CheckCoverage(context, plan.diagnostics));
    for (const Unit& unit : context.units) names.push_back(unit.name);
    plan.diagnostics.push_back(
        {"units", absl::StrCat(names.size(), " units: ", absl::StrJoin(names, "; ")), {}});
    return false;
  }
};

// Fills units from the entries that the caller wrote.
class ReadEntriesPass : public Pass {
 public:
  absl::string_view name() const override { return "read-entries"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    ASSIGN_OR_RETURN(std::vector<Entry> entries, ParseEntries(context.options.buckets));
    const std::vector<LabelUse> uses = LabelsInOrder(context);
    std::vector<absl::string_view> labels;
    labels.reserve(uses.size());
    for (const LabelUse& use : uses) labels.push_back(use.label);
    ASSIGN_OR_RETURN(entries, ExpandWildcards(std::move(entries), labels));
    RETURN_IF_ERROR(MatchEntries(entries, context));
    RETURN_IF_ERROR(CheckCoverage(context, plan.diagnostics));
    return false;
  }
};

}  // namespace

std::unique_ptr<Pass> MakeFindBlocksPass() { return std::make_unique<FindBlocksPass>(); }
std::unique_ptr<Pass> MakeReadEntriesPass() { return std::make_unique<ReadEntriesPass>(); }

}  // namespace bucketd
