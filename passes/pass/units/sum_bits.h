// Whose bits the gradients have that a plan reduces over ranks.
#pragma once

#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd {

// Sets plan.bits and plan.bits_text from the buckets, the graph and the order of parameters that
// was given. Eager training is FSDP2 with a unit a transformer block, where blocks are found, else
// with a unit an entry of the options: its sums are the plan's where each unit's gradients are one
// packed bucket in registration order, or where no form of a bucket changes a sum. What is not
// proven is not said. Of the context only what is there before any pass is read. O(nodes + edges).
void SayWhoseBits(const PassContext& context, Plan& plan);

}  // namespace bucketd
