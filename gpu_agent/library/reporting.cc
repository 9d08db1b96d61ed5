#include "gpu_agent/library/reporting.h"

#include <algorithm>
#include <limits>

namespace bucketd::agent {
namespace {

uint32_t Short(int64_t nanoseconds) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(std::clamp<int64_t>(nanoseconds, 0, kMost));
}

uint32_t Nanoseconds(int64_t picoseconds) { return Short(picoseconds / 1000); }

}  // namespace

Reporting::Reporting(RingWriter& ring, const Program& program, RingPlan plan,
                     const std::vector<RingLink>& links, const std::vector<int64_t>& predicted_ps)
    : ring_(ring), plan_(plan.plan), arena_bytes_(program.memory_bytes) {
  plan.arena_bytes = arena_bytes_;
  for (size_t k = 0; k < program.plan.buckets.size(); ++k) {
    const BucketSpec& spec = program.plan.buckets[k];
    RunRecord& record = next_.emplace_back();
    record.plan = plan.plan;
    record.bytes = FullBytes(spec);
    record.predicted_ns = Nanoseconds(predicted_ps[k]);
    record.bucket = static_cast<uint16_t>(k);
    record.kind = static_cast<uint8_t>(spec.kind);
    record.dtype = static_cast<uint8_t>(spec.dtype);
    record.packed = spec.mode == BucketMode::kPacked ? 1 : 0;
    const size_t members = record.packed != 0 ? 1 : spec.counts.size();
    record.launches = static_cast<uint16_t>(std::min<size_t>(members, 0xffff));
    record.link = kNoLink;
    // A group of one rank has no wire below it, and an agent takes no ring that says it has.
    if (links[k].size < 2) continue;
    record.link = ring.AddLink(links[k]);
    whole_ = whole_ && record.link != kNoLink;
  }
  whole_ = ring.AddPlan(plan) && whole_;
}

void Reporting::Ran(int32_t bucket, const BucketTimes& times, int64_t exposed_ns) {
  RunRecord& record = next_[static_cast<size_t>(bucket)];
  record.pack_ns = Nanoseconds(times.pack.duration_ps());
  record.wire_ns = Nanoseconds(times.wire.duration_ps());
  record.unpack_ns = Nanoseconds(times.unpack.duration_ps());
  record.exposed_ns = Short(exposed_ns);
  record.peak_bytes = peak_bytes_.load(std::memory_order_relaxed);
  ring_.Write(record);
  ++record.step;
}

}  // namespace bucketd::agent
