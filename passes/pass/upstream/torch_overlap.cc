#include "passes/pass/upstream/torch_overlap.h"

#include <memory>

#include "passes/base/collectives.h"
#include "passes/pass/upstream/edge_relations.h"

namespace bucketd::upstream {
namespace {

// By these ops' schemas torch takes them for neither views nor elementwise.
constexpr absl::string_view kDearOps[] = {"aten._to_copy.default", "aten._unsafe_view.default",
                                          "aten.floor_divide.default"};

absl::StatusOr<std::unique_ptr<overlap_bucket::Relations>> TorchRelations(
    const Model& model, overlap_bucket::GroupTimelines&) {
  return EdgeRelations::Make(model, Defects::All());
}

}  // namespace

absl::StatusOr<OverlapPolicy> TorchOverlap(const PlanOptions& options) {
  if (options.max_memory_increase_bytes == kNoLimit &&
      options.max_memory_increase_ppm == kNoLimit) {
    return absl::InvalidArgumentError(
        "max_memory_increase_mb and max_memory_increase_ppm are both none, which torch 2.13 does "
        "not survive; give one of them, or leave out upstream");
  }
  OverlapPolicy torch;
  torch.dear_ops = kDearOps;
  torch.every_kind_moves = false;
  torch.keys_have_directions = false;
  torch.mates_may_merge = false;
  torch.room_for_what_starts = false;
  torch.waits_end_others = false;
  torch.queues_are_current = false;
  torch.waits_move_up = false;
  torch.inputs_live_until_wait = false;
  torch.keeps_to_memory = false;
  torch.larger_increase = true;
  // Its bucketer measures distances in the schedule, inputs counted.
  torch.placeholders_in_place = options.overlap_bucketing;
  torch.search_steps = 20'000;
  return torch;
}

NodeId AbsorbedCast(const Graph& graph, const overlap_bucket::LaunchInfo& launch) {
  if (launch.bucket >= 0) return kNoNode;
  const Collective& collective = graph.collective(launch.collective);
  if (!Gathers(collective.kind) || graph.inputs(collective.start).empty()) return kNoNode;
  const NodeId input = graph.inputs(collective.start)[0];
  const bool cast = graph.kind(input) == NodeKind::kCall && graph.users(input).size() == 1 &&
                    (graph.op(input) == "aten._to_copy.default" ||
                     graph.op(input) == "prims.convert_element_type.default");
  return cast ? input : kNoNode;
}

const OverlapBucketPolicy& TorchOverlapBucket() {
  static constexpr OverlapBucketPolicy kTorch = {
      .relations = TorchRelations,
      .hidden_inside_only = false,
      .own_group_stays = false,
      .keys_have_directions = false,
      .each_parameter_counts = false,
      .buckets_are_whole = false,
      .keeps_to_memory = false,
      .placeholders_first = true,
      .absorbed = AbsorbedCast,
  };
  return kTorch;
}

}  // namespace bucketd::upstream
