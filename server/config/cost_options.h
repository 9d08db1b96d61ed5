// What an operator can set about costs: rows of the table in options.cc.
#pragma once

#include <cstdint>

namespace bucketd {

struct CostOptions {
  // Samples: who may move what, and how far one version goes (passes/cost/measured_fit.h).
  int32_t quorum = 3;                   // reporters that must agree
  int64_t move_ppm = 250'000;           // of any duration, where fewer measured: +25 % / -20 %
  int64_t quorum_move_ppm = 3'000'000;  // where a quorum did: 4 times, a quarter
  int32_t min_samples = 8;              // of a class
  bool auto_promote = false;            // a proposal that a quorum made and nothing clamped
  int64_t max_report_samples = 20'000;  // of one stream
  int32_t max_report_streams = 16;      // at a time
  int64_t max_samples = 100'000;        // held, all profiles together
  int32_t sample_days = 30;             // then a sample is forgotten
  // Of a pinned plan's step time: a new plan must be faster by more. kNeverReplan: none is asked
  // for.
  int64_t replan_gain_ppm = 20'000;
  static constexpr int64_t kNeverReplan = 1'000'000;
};

}  // namespace bucketd
