// Checks that are tests: one whose bound does not hold fails.
#pragma once

#include <string>

#include "gtest/gtest.h"

#include "tests/gpu_agent/checks/say.h"

namespace bucketd::agent {

// Whether something was right, but below a goal.
inline bool below_a_goal = false;

// A bound that has to hold.
inline void MustHold(const std::string& what, const std::string& figure, const std::string& bound,
                     bool holds) {
  Line(what, figure, bound, holds ? "right" : "WRONG");
  EXPECT_TRUE(holds) << what << ": " << figure << ", bound " << bound;
}

// A goal, which says how fast something is meant to be.
inline void Goal(const std::string& what, const std::string& figure, const std::string& goal,
                 bool met) {
  Line(what, figure, goal, met ? "right" : "below the goal");
  below_a_goal = below_a_goal || !met;
}

}  // namespace bucketd::agent
