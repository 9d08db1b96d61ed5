// From what a sweep measured to a cost profile, and to the table that people know from nccl-tests.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "gpu_agent/run/sweep.h"
#include "passes/cost/measured_fit.h"
#include "passes/cost/profile.h"

namespace bucketd::agent {

struct CalibrationOf {
  std::string name;        // the profile's
  std::string about;       // what was measured, for people
  std::string link_class;  // MeshDim::link_class of groups like this one
  int ranks = 2;
  int ranks_per_node = 2;
};

struct Calibration {
  CostProfile profile;  // `base` with rows, gamma, copies and the host's launches as measured
  std::vector<ClassFit> classes;
  double copy_error = 0.0;  // half of the copies lie within this share of their line
};

// What was measured alone decides; `base` has no say in what the sweep covers. FAILED_PRECONDITION
// if elements were wrong: such a machine has no costs.
absl::StatusOr<Calibration> Calibrate(const SweepResult& sweep, const CalibrationOf& of,
                                      const CostProfile& base);

// Titles of nccl-tests' columns for rows of this kind and number of launches.
std::string TableTitle(const CollectiveRow& row, const std::string& communicator);
// One line: an out-of-place and an in-place row of the same size; the latter may be null.
std::string TableLine(const CollectiveRow& out_of_place, const CollectiveRow* in_place, int ranks);
std::string CopyTable(const SweepResult& sweep);
std::string FitTable(const Calibration& calibration);

}  // namespace bucketd::agent
