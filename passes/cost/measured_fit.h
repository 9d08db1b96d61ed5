// Measured durations to rows of a cost profile.
//
// Of each class of links a line time(bytes) = latency + bytes / bandwidth is fitted, in steps that
// one liar, one straggler or one noisy host cannot carry away:
//   - samples are compared with what the profile predicts for their own size, a ratio each, and
//     ratios are put into bins by the power of two of their size;
//   - in a bin each reporter has one vote, the median of its ratios, however many samples it sent;
//     samples far from their reporter's median (median absolute deviation) are outliers;
//   - the bin's point is the median of the votes. Where bins have a quorum of reporters, those
//     without one do not count: nobody decides a size alone that others have measured around;
//   - through the points goes the line with the least sum of relative distances, which half of the
//     points cannot bend. Sizes that show only latency, or only bandwidth, leave the other as it
//     is;
//   - latency and bandwidth end within a factor of what the profile said: a small one where fewer
//     reporters than the quorum measured. So does then every duration of the class.
// Plain sums, products and comparisons of doubles in sorted order: the same samples, the same rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "passes/cost/costs.h"
#include "passes/cost/measured_link.h"
#include "passes/cost/profile.h"

namespace bucketd {

// One collective, without the copies around it. Of a grouped launch: of all of it.
struct MeasuredSample {
  int64_t bytes = 0;  // full message, as Collective::bytes; of all members
  int64_t picoseconds = 0;
  int32_t launches = 1;  // members of a grouped launch
  std::string reporter;  // who has one vote
};

struct ClassSamples {
  LinkClass of;
  std::vector<MeasuredSample> samples;
};

struct FitOptions {
  int32_t min_samples = 8;     // a class with fewer stays as it is
  int32_t quorum = 3;          // reporters that must have measured a size to be believed as a group
  double alone_factor = 1.25;  // without a quorum, nothing moves further than this, up or down
  double quorum_factor = 4.0;  // with one
  double min_move = 0.02;      // what moves less stays: versions do not follow noise
  double outlier_mads = 5.0;
};

struct ClassFit {
  LinkClass of;
  StatedCosts::Link before, after;  // `after` is `before` where nothing moved
  int32_t samples = 0;              // that counted
  int32_t outliers = 0;
  int32_t reporters = 0;
  bool quorum = false;
  bool clamped = false;  // the measurements say more than one step may move
  bool moved = false;
  // Whether the sizes told latency, and bandwidth, apart from the other. What they did not is
  // `before`'s, or has moved in proportion.
  bool latency_shown = false, bandwidth_shown = false;
};

struct ProfileFit {
  CostProfile profile;  // `base` with new rows and gamma; name and version are base's
  std::vector<ClassFit> classes;
  double gamma_before_us = 0.0, gamma_after_us = 0.0;
  bool gamma_clamped = false, gamma_quorum = false;
  bool moved = false;  // anything
};

// REQUIRES: base.Validate().ok(), classes valid, bytes and picoseconds positive, launches >= 1.
// O(samples log samples + classes * 63^3).
ProfileFit FitProfile(const CostProfile& base, absl::Span<const ClassSamples> classes,
                      const FitOptions& options);

}  // namespace bucketd
