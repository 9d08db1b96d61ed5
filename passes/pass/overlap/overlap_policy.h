// What may be decided otherwise in the overlap scheduler, one member each; the defaults are our
// own. passes/pass/upstream decides as torch 2.13 does.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/pass/pass.h"

namespace bucketd {

struct OverlapPolicy {
  // Views and elementwise ops that count as compute all the same.
  absl::Span<const absl::string_view> dear_ops;
  // Collectives of every kind move; else not those that join no bucket and are no all-to-all.
  bool every_kind_moves = true;
  // Launches of different directions have different keys.
  bool keys_have_directions = true;
  // What is in flight makes the next launch cheaper if a bucket may hold both; else if it is like
  // it in all but the kind.
  bool mates_may_merge = true;
  // A launch that has to wait ends none in flight to make room for itself.
  bool room_for_what_starts = true;
  // A wait on the way to a launch is judged by everything that it ends, not by its own launch.
  bool waits_end_others = true;
  // What has started leaves its queue at once, and its bytes count no more.
  bool queues_are_current = true;
  // A wait whose launch is hidden from now on goes back to its place among the ready steps.
  bool waits_move_up = true;
  // A collective's input lives until its wait, not until its start.
  bool inputs_live_until_wait = true;
  // Runs again with less room where the result needs too much memory.
  bool keeps_to_memory = true;
  // Of the two limits of what memory may grow by the larger one holds, whatever the options say.
  bool larger_increase = false;
  // Placeholders stand where the schedule takes them, not before everything.
  bool placeholders_in_place = false;
  // What all searches for the way to a launch may look at, for each step and each edge.
  int64_t search_steps = 64;
};

using MakeOverlapPolicy = absl::StatusOr<OverlapPolicy> (*)(const PlanOptions&);

// `upstream` decides where options.upstream is set; its errors are the pass's.
std::unique_ptr<Pass> MakeScheduleOverlapPass(MakeOverlapPolicy upstream);

}  // namespace bucketd
