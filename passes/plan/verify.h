// Is this plan legal for this graph? Always asked: after every pass, before a plan leaves the
// planner, before a client applies it.
#pragma once

#include "absl/status/status.h"

#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd {

// OK, or INVALID_ARGUMENT with up to 50 violations, a line each, that name nodes and buckets.
// O(nodes + edges); with in-place ops, plus one step for every (use, storage) pair, and
// RESOURCE_EXHAUSTED for a graph whose aliases make more of those than any real one has.
// Thread-safe. Each invariant is a function of its own:
//   buckets    two or more distinct members; a member is a collective with a wait, of kind
//              all-gather, reduce-scatter or all-reduce, in one bucket only; members agree in kind,
//              group, reduce op and dtype; mode and copies are known
//   layout     offsets, where a bucket has them, are those of LayOut()
//   order      every node that is not a member or a member's wait stands once; both tokens of every
//              bucket stand once
//   edges      every node after its inputs; a start after all inputs of all members; a wait after
//              its start and before all users of all members; nobody but its wait reads a member
//   in place   an in-place op keeps its side of every other user of the storage, through views and
//              buckets; a collective uses its input until its wait
//   ordered    random, effectful and host-synchronising ops keep their relative order
// The rules are the referee's, verdict by verdict (tests/passes/verdict_test.py). An executor may
// have more: a member that writes into a given tensor is legal here, and the Python client refuses
// it. The planner makes no such bucket.
absl::Status VerifyPlan(const Graph& graph, const Plan& plan);

}  // namespace bucketd
