// NCCL's profiler plugin under the NCCL that is here: that it is loaded and told, and its kernel
// time beside the time on the wire that buckets have, which events around the launch see.
#include <stdlib.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"

#include "tests/gpu_agent/checks/line.h"
#include "tests/gpu_agent/checks/wires.h"
#include "tests/gpu_agent/heard_records.h"

namespace bucketd::agent {
namespace {

// NCCL decides at the first communicator of a process, so this one runs alone.
TEST(ProfilerPlugin, TellsOfKernels) {
  if (std::getenv("NCCL_PROFILER_PLUGIN") == nullptr) GTEST_SKIP() << "no plugin is named";
  if (kRanks < 2) GTEST_SKIP() << "NCCL runs no kernel for one rank";
  HeardRecords heard;
  setenv("BUCKETD_AGENT", heard.socket().c_str(), 1);
  const auto machine = NewMachine();
  const int times = Times(200, 20);
  std::mutex mutex;
  std::vector<double> wire_us;
  OnWires([&](Wires& wires, int /*rank*/) {
    for (int k = 0; k < times; ++k) {
      const auto from = wires.stream().Record();
      wires.Launch();
      const auto to = wires.stream().Record();
      ASSERT_TRUE(to->Wait(absl::Now() + absl::Seconds(10)).ok());
      const std::lock_guard lock(mutex);
      wire_us.push_back(static_cast<double>(*to->Since(*from)) * 1e-6);
    }
  });
  // One more of each rank is that with which it began.
  const auto all = static_cast<size_t>((times + 1) * kRanks);
  const std::vector<RunRecord> records = heard.Wait(all, absl::Seconds(5));
  MustHold("collectives that NCCL's profiler plugin tells of",
           absl::StrFormat("%d of %d", records.size(), all), "all", records.size() == all);
  std::vector<double> kernel_us;
  for (const RunRecord& record : records) {
    EXPECT_EQ(record.plan, kKernelsOfBuckets);
    EXPECT_EQ(record.bytes, 4096);
    kernel_us.push_back(record.wire_ns * 1e-3);
  }
  ASSERT_FALSE(kernel_us.empty());
  const double kernel = Median(kernel_us), wire = Median(wire_us);
  MustHold("4 KiB all-reduce, in its kernel against on the wire",
           absl::StrFormat("%.1f us against %.1f us", kernel, wire), "less, and more than 0",
           kernel > 0 && kernel <= wire);
}

}  // namespace
}  // namespace bucketd::agent
