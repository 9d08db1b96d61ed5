// An agent's probes on simulated GPUs, as they end where an epoch is over.
#include "gpu_agent/daemon/prober.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/gpus.h"

namespace bucketd::agent {
namespace {

using ::testing::IsEmpty;

// Somebody ends the epoch between two calls: launches fail from a certain one on, and what was
// enqueued before goes on.
class Ending final : public Communicator {
 public:
  Ending(Communicator& real, int launches) : real_(real), left_(launches) {}

  absl::Status Launch(Stream& stream, absl::Span<const Collective> group) override {
    // The last one of a probe: which rank is the slowest.
    const bool last = group[0].kind == CollectiveKind::kAllGather && group[0].dtype == DType::kI64;
    if (left_-- <= 0 || last) return absl::AbortedError("the epoch is over");
    return real_.Launch(stream, group);
  }
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  std::string ToString() const override { return real_.ToString(); }
  absl::Status health() const override { return real_.health(); }
  void Abort(const std::string& why) override { real_.Abort(why); }

 private:
  Communicator& real_;
  int left_;
};

TEST(ProberTest, AnEpochThatEndsWithinAProbeFreesNothingInUse) {
  constexpr int kOfOneCollective = 14;
  for (int launches = 0; launches <= kOfOneCollective + 1; ++launches) {
    const bool whole = launches > kOfOneCollective;
    sim::World world({.devices = 1});
    {
      Meeting meeting(world, 1, 1);
      CudaDevice device(0, "cuda simulated", world.nccl_api());
      const auto real = *meeting.Join(device, 0, 0, absl::Seconds(30));
      Ending communicator(*real, whole ? 1 << 20 : launches);
      const auto probe = Prober(device, communicator, 4096).Short();
      EXPECT_TRUE(absl::IsAborted(probe.status())) << probe.status();
    }
    world.Drain();
    ASSERT_THAT(world.findings(), IsEmpty()) << launches << " launches";
    EXPECT_EQ(world.allocations(), 0u) << launches << " launches";
  }
}

}  // namespace
}  // namespace bucketd::agent
