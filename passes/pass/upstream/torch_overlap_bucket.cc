#include "passes/pass/upstream/torch_overlap_bucket.h"

#include <memory>

#include "passes/pass/upstream/edge_relations.h"

namespace bucketd::upstream {
namespace {

absl::StatusOr<std::unique_ptr<Relations>> MakeRelations(const Model& model,
                                                         overlap_bucket::GroupTimelines&) {
  return EdgeRelations::Make(model, Defects::All());
}

}  // namespace

overlap_bucket::Policy TorchOverlapBucket() {
  overlap_bucket::Rules rules;
  rules.own_group_hides = false;
  rules.directions_apart = false;
  rules.members_alike = false;
  rules.whole_buckets = false;
  rules.hidden_inside = false;  // a wait may end early what is still to be hidden
  rules.stays_within_limit = false;
  rules.inputs_stay = false;
  rules.casts_stay = false;
  return {rules, MakeRelations};
}

}  // namespace bucketd::upstream
