// Keeps a schedule within a memory limit by moving launches less far.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/pass/pass.h"
#include "passes/pass/schedule.h"
#include "passes/plan/plan.h"

namespace bucketd {

// The limit on a prediction's peak, in bytes: options' share of program order's peak, or their
// bytes, less what is resident beside the graph. Negative if that alone is too much.
int64_t MemoryLimit(const PassContext& context);

// If `peak` is above MemoryLimit(): FAILED_PRECONDITION where the limit was given in bytes, else a
// diagnostic of the plan. `refusal`: the text, in which $0 stands for the peak,
// $1 for the limit and $2 for program order's peak.
absl::Status CheckMemory(const PassContext& context, int64_t peak, absl::string_view refusal,
                         Plan& plan);

// Whether memory may be above the limit while a step runs; `live` is memory after each step.
bool MayExceed(const Graph& graph, const Plan& plan, absl::Span<const int64_t> live, size_t step,
               int64_t limit);

// REQUIRES: plan.order == scheduler.Order(distances). While memory is above the limit somewhere,
// shortens the longest distances of launches that reach across that place, until all fits or
// nothing is left to shorten; plan.order follows. Returns the plan's figures. At most 24
// simulations.
Prediction FitMemory(const PassContext& context, const Scheduler& scheduler, int64_t limit,
                     std::vector<int32_t>& distances, Plan& plan);

// For every marked step, shortens the largest distances among the launches that reach across it, by
// a quarter but at least one. False if no launch does.
bool TakeFromFarthest(absl::Span<const Scheduler::Window> windows, const std::vector<bool>& marked,
                      std::vector<int32_t>& distances);

// Halves, for every step that is above the limit, the largest bucket that holds memory there: a
// gather from its start to its members' last use, a reduction from its first input to its wait. Of
// two members, both stay alone. `live` is memory after each step of plan.order, which no longer
// fits the buckets afterwards; context.launches do. False if there is none.
bool SplitOverLimit(PassContext& context, absl::Span<const int64_t> live, int64_t limit,
                    Plan& plan);

}  // namespace bucketd
