// The bytes that a trainer's process and its node's agent share: a page that says what is there,
// then records. Version 3 of a format: fields keep their place and meaning; what is added comes
// with a new version, and an agent reads no version but its own.
//
// One process writes `head`, records and tables, one reads and writes `tail`. A record counts once
// `head` has passed it, an entry of a table once its count has; neither changes then, but for a
// plan's `arena_bytes`. Neither side believes the other: reader.h and writer.h say what each
// checks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace bucketd::agent {

inline constexpr std::array<char, 8> kRingMagic = {'b', 'k', 't', 'r', 'i', 'n', 'g', '\0'};
inline constexpr uint32_t kRingVersion = 3;
inline constexpr uint32_t kRingLinks = 16;
inline constexpr uint32_t kRingPlans = 30;
inline constexpr uint8_t kNoLink = 255;
inline constexpr uint32_t kRingRecords = 4096;  // of a trainer; some seconds of a fast step
inline constexpr uint32_t kMostRingRecords = 1 << 16;

// In the place of a plan: what NCCL's profiler plugin saw (gpu_agent/profiler). Of communicators of
// others, torch's above all, and of the executor's, whose buckets have records of their own beside.
// `wire_ns` is the kernel's time by the GPU's clock, `step` how many of the communicator's
// collectives of this kind were before, `bucket` the kind. Such a ring has kTorchsOwn as its plan.
inline constexpr uint64_t kTorchsOwn = 0, kKernelsOfBuckets = 1;  // no plan's digest is so small
inline constexpr bool IsOfKernels(uint64_t plan) { return plan <= kKernelsOfBuckets; }

enum class GraphPart : uint8_t { kOther = 0, kForward, kBackward, kJoint };

// One run of one bucket on one rank, that came to its end. Durations end at 4.29 s.
struct RunRecord {
  uint64_t plan = 0;  // first eight bytes of the plan's SHA-256, or one of those above
  int64_t bytes = 0;  // full message, as Bucket.bytes
  // Most memory of the plan's runs so far, as predicted_peak_bytes; 0: not seen.
  int64_t peak_bytes = 0;
  uint32_t pack_ns = 0;       // copy-in
  uint32_t wire_ns = 0;       // the collective, slower peers included
  uint32_t unpack_ns = 0;     // copy-out
  uint32_t exposed_ns = 0;    // that the trainer stood and waited
  uint32_t predicted_ns = 0;  // of the wire, by the plan; 0: not said
  uint32_t step = 0;          // how many runs of the plan were before
  uint16_t bucket = 0;
  uint16_t launches = 1;  // members of a grouped launch
  uint8_t kind = 0;       // CollectiveKind
  uint8_t dtype = 0;      // DType, on the wire
  uint8_t packed = 0;     // 1: one flat buffer
  uint8_t link = 0;       // index into RingHeader::links, or kNoLink
};
static_assert(sizeof(RunRecord) == 56);

// A process group, and the wires below it.
struct RingLink {
  std::array<char, 40> link_class{};  // ends with a 0
  uint64_t group = 0;                 // the same on its ranks and on no others of the job
  uint32_t size = 0;
  uint32_t ranks_per_node = 0;
  uint32_t reserved[2] = {};
};
static_assert(sizeof(RingLink) == 64);

// A plan that the process runs: what a run was predicted to take.
struct RingPlan {
  uint64_t plan = 0;
  int64_t predicted_exposed_ps = 0;
  int64_t predicted_peak_bytes = 0;
  int64_t arena_bytes = 0;  // of the executors that are open with it
  uint8_t part = 0;         // GraphPart
  std::array<uint8_t, 7> reserved{};
};
static_assert(sizeof(RingPlan) == 40);

// What is written often has a cache line of its own.
struct RingHeader {
  std::array<char, 8> magic = kRingMagic;
  uint32_t version = kRingVersion;
  uint32_t records = kRingRecords;  // a power of two
  std::array<char, 48> job{};       // ends with a 0
  uint64_t head = 0;                // records ever written
  uint64_t dropped = 0;             // for want of room
  uint32_t link_count = 0;
  uint32_t plan_count = 0;
  uint64_t head_line[5] = {};
  uint64_t tail = 0;  // records ever read
  uint64_t tail_line[7] = {};
  std::array<RingLink, kRingLinks> links{};
  std::array<RingPlan, kRingPlans> plans{};
  std::array<uint8_t, 4096 - 192 - 64 * kRingLinks - 40 * kRingPlans> reserved{};
};
static_assert(sizeof(RingHeader) == 4096);
static_assert(offsetof(RingHeader, head) == 64 && offsetof(RingHeader, tail) == 128);

inline constexpr size_t kMostJobBytes = sizeof(RingHeader::job) - 1;  // printable ASCII

inline constexpr size_t RingBytes(uint32_t records) {
  return sizeof(RingHeader) + size_t{records} * sizeof(RunRecord);
}

}  // namespace bucketd::agent
