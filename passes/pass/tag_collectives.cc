#include <memory>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/pass/passes.h"

namespace bucketd {
namespace {

// Fills tags, directions and constraints. The plan stays as it is.
class TagCollectives : public Pass {
 public:
  absl::string_view name() const override { return "tag-collectives"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    context.tags = ResolveTags(context.graph, plan.diagnostics);
    context.directions = CollectiveDirections(context.graph);
    ASSIGN_OR_RETURN(context.constraints, FindConstraints(context.graph));
    size_t tagged = 0;
    for (const CollectiveTag& tag : context.tags.of) tagged += tag.tag == Tag::kNone ? 0 : 1;
    if (context.tags.derived && tagged > 0) {
      plan.diagnostics.push_back(
          {"tags-derived",
           absl::StrCat("the graph names no parameter collectives; ", tagged, " of ",
                        context.tags.of.size(), " collectives were found by structure"),
           {}});
    }
    return false;
  }
};

}  // namespace

std::unique_ptr<Pass> MakeTagCollectivesPass() { return std::make_unique<TagCollectives>(); }

}  // namespace bucketd
