// Every knob of a plan. Part of the plan's key, field by field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/types.h"

namespace bucketd {

enum class Choice : uint8_t { kAuto = 0, kOn = 1, kOff = 2 };
enum class MemoryRule : uint8_t { kMax = 0, kMin = 1 };
enum class DenseRegions : uint8_t { kOff = 0, kOn = 1, kStrict = 2 };

// By name and as text in option_table.h; on the wire bucketd.v1.PlanOptions.
struct PlanOptions {
  std::string mode = "auto";
  Numerics numerics = Numerics::kEagerOrder;
  std::string backend = "nccl";  // whose summation order `numerics` speaks of: "gloo", "nccl"
  // Peak memory a plan may reach, as a share of program order's in parts per million, or in bytes
  // if that is not 0. Launches move less far to stay within it. Where that is not enough, the share
  // is exceeded and the plan says so; a limit in bytes is never exceeded: the mode then refuses,
  // unless it is none or there are no collectives.
  int64_t memory_limit_ppm = 1'050'000;
  int64_t memory_limit_bytes = 0;
  // Weights, optimizer state and whatever else lives beside the graph: part of both peaks that the
  // limits above compare, not of predictions.
  int64_t resident_bytes = 0;
  std::string buckets;  // entries of mode manual; "": blocks are found
  int32_t prefetch_forward = 1;
  int32_t prefetch_backward = 1;
  int32_t defer_reduce_scatter = 1;
  std::string reorder = "all";               // all, none, or entries
  std::vector<std::string> parameter_order;  // FQNs in eager registration order
  bool strict_coverage = false;
  // Launches start in the dense parts of neighbouring layers; strict: or planning fails.
  DenseRegions dense_regions = DenseRegions::kOff;

  // As torch 2.13's passes do, known defects included, for comparison. Mode overlap has torch's
  // order and buckets on the captured steps that DECISIONS.md names, without pre_bucketing only.
  bool upstream = false;
  bool bucket_all_reduce = true;    // of gradients, where numerics allow it (numerics.h)
  bool primary_group_only = false;  // leave groups other than the primary one alone

  // Modes greedy and overlap: what closes a bucket.
  std::vector<int64_t>
      bucket_cap_bytes;          // of bucket 0, 1, ... of a key, the last repeats; {}: auto
  int32_t max_topo_span = 1500;  // distance of members in program order; kNoLimit

  // Mode overlap.
  bool pre_bucketing = true;      // merge by bytes before scheduling
  bool overlap_bucketing = true;  // merge after scheduling, without losing overlap
  int64_t max_in_flight_bytes = int64_t{5} << 30;
  int32_t max_compute_prefetch = 200;     // compute nodes ahead of its use that a gather may start
  int32_t max_collective_distance = 200;  // candidates looked at
  int64_t compute_overlap_ppm = 1'000'000;  // share of a kernel's time that hides communication
  int64_t max_memory_increase_bytes = int64_t{1} << 30;  // over program order's; kNoLimit
  int64_t max_memory_increase_ppm = 50'000;              // of program order's; kNoLimit
  MemoryRule memory_rule = MemoryRule::kMax;             // of the two above, where both are given
  int64_t max_off_path_bytes = int64_t{1} << 29;  // collectives off the critical path wait for so
                                                  // many bytes of their key
  Choice bucket_exposed_first = Choice::kAuto;    // auto: on groups across nodes
  bool bucket_only_internode = false;
  bool prioritize_bucketing = true;  // prefetch collectives of one key together
  int64_t overlap_bucket_cap_bytes = int64_t{2} << 30;
  bool autofix_cycles = false;  // upstream only: drop control edges that make a cycle

  // Mode auto: work of the search, 0 to 9; each step doubles it.
  int32_t effort = 5;

  absl::Status Validate() const;  // unknown names list the known ones
};

// A limit that is not there.
inline constexpr int32_t kNoLimit = -1;

// Modes that `mode` may name, in the order of help texts.
absl::Span<const absl::string_view> PlanModes();  // modes/pass_registry.h says what each runs

}  // namespace bucketd
