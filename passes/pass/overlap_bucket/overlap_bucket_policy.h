// What may be decided otherwise in the overlap-preserving bucketer, one member each; the defaults
// are our own. passes/pass/upstream decides as torch 2.13 does.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "passes/pass/pass.h"

namespace bucketd {

namespace overlap_bucket {

class GroupTimelines;
class Relations;
struct LaunchInfo;
struct Model;

using MakeRelations = absl::StatusOr<std::unique_ptr<Relations>> (*)(const Model&, GroupTimelines&);

// A Quotient.
absl::StatusOr<std::unique_ptr<Relations>> MakeQuotient(const Model& model,
                                                        GroupTimelines& timeline);

}  // namespace overlap_bucket

struct OverlapBucketPolicy {
  overlap_bucket::MakeRelations relations = overlap_bucket::MakeQuotient;
  // What hides a launch must stand between its start and its wait; else a wait may have ended early
  // what was still to be hidden.
  bool hidden_inside_only = true;
  // A launch that hides one of its own group merges with none, hidden altogether or not.
  bool own_group_stays = true;
  // Launches of different directions have different keys.
  bool keys_have_directions = true;
  // A group is taken for one across nodes if each member of its first gather is of a parameter;
  // else if all are of one.
  bool each_parameter_counts = true;
  // A bucket's interval and what hides it are those of all its members, not of the member that a
  // timeline meets.
  bool buckets_are_whole = true;
  // Buckets are made smaller where the result needs too much memory.
  bool keeps_to_memory = true;
  // Placeholders go before everything.
  bool placeholders_first = false;
  // What a merged launch takes in from before it, and what then stands right before the bucket;
  // nullptr: nothing. kNoNode: this one takes in nothing.
  NodeId (*absorbed)(const Graph&, const overlap_bucket::LaunchInfo&) = nullptr;
};

// `upstream` decides where options.upstream is set. It outlives the pass.
std::unique_ptr<Pass> MakeOverlapBucketPass(const OverlapBucketPolicy& upstream);

}  // namespace bucketd
