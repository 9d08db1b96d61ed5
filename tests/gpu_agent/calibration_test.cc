// From the rows of a sweep to a profile: rows are made here, of a machine whose figures are known.
#include "gpu_agent/run/calibration.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/cost/costs.h"
#include "passes/cost/device_model.h"
#include "passes/io/profile_json.h"

namespace bucketd::agent {
namespace {

using ::testing::HasSubstr;

constexpr double kAlphaUs = 50.0, kUsPerByte = 2e-4, kGammaUs = 3.0;
constexpr double kCopyLaunchUs = 2.0, kCopyUsPerByte = 1e-4;

int64_t Ps(double us) { return static_cast<int64_t>(us * 1e6); }

// One in five late, as on a machine that does something else too.
std::vector<int64_t> Repetitions(double us) {
  std::vector<int64_t> all(4, Ps(us));
  all.push_back(Ps(us * 20.0));
  return all;
}

CollectiveRow Row(CollectiveKind kind, int64_t bytes, int32_t launches, bool in_place, double us) {
  CollectiveRow row;
  row.kind = kind;
  row.dtype = DType::kBF16;
  row.bytes = bytes;
  row.launches = launches;
  row.in_place = in_place;
  row.picoseconds = Repetitions(us);
  row.host_ps = Ps(1.5);
  return row;
}

// Of collectives that take `slower` times as long out of place.
SweepResult MadeSweep(CollectiveKind kind, double slower) {
  SweepResult sweep;
  for (int64_t bytes = 4096; bytes <= 64 << 20; bytes *= 4) {
    const double us = kAlphaUs + kUsPerByte * static_cast<double>(bytes);
    sweep.collectives.push_back(Row(kind, bytes, 1, true, us));
    sweep.collectives.push_back(Row(kind, bytes, 1, false, us * slower));
    sweep.collectives.push_back(Row(kind, bytes, 4, false, (us + 3 * kGammaUs) * slower));
    const double moved = 2.0 * static_cast<double>(bytes);
    sweep.copies.push_back(
        {"copy", bytes, 2 * bytes, Repetitions(kCopyLaunchUs + kCopyUsPerByte * moved)});
  }
  return sweep;
}

absl::StatusOr<Calibration> Calibrated(const SweepResult& sweep) {
  return Calibrate(sweep, {"here", "made", "", 2}, *FindProfile("cpu_loopback"));
}

double PredictedUs(const CostProfile& profile, CollectiveKind kind, double bytes) {
  const StatedCosts::Link link = LinkUnder(profile, {kind, "", 2, 2, DType::kBF16});
  return link.alpha_us + WireFactor(kind, 2) * bytes / link.busbw_bytes_per_s * 1e6;
}

TEST(Calibration, FindsTheFiguresOfAMachine) {
  const auto calibration = Calibrated(MadeSweep(CollectiveKind::kReduceScatter, 1.0));
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  const CostProfile& profile = calibration->profile;
  for (const double bytes : {4e3, 1e6, 5e7}) {
    const double us = kAlphaUs + kUsPerByte * bytes;
    EXPECT_NEAR(PredictedUs(profile, CollectiveKind::kReduceScatter, bytes) / us, 1.0, 0.001);
  }
  EXPECT_NEAR(profile.gamma_us, kGammaUs, 0.01);
  EXPECT_NEAR(profile.copy_launch_us, kCopyLaunchUs, 0.01);
  EXPECT_NEAR(profile.hbm_bytes_per_s, 1e6 / kCopyUsPerByte, 1e6);
  EXPECT_NEAR(profile.host_us_per_collective, 1.5, 0.001);
  EXPECT_EQ(profile.name, "here");
}

TEST(Calibration, StandsBetweenWhatRunsInPlaceAndWhatDoesNot) {
  constexpr double kSlower = 1.4;
  const auto calibration = Calibrated(MadeSweep(CollectiveKind::kAllGather, kSlower));
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  for (const double bytes : {4e3, 1e6, 5e7}) {
    const double in_place = kAlphaUs + kUsPerByte * bytes;
    const double us = PredictedUs(calibration->profile, CollectiveKind::kAllGather, bytes);
    EXPECT_GT(us / in_place, 1.2);
    EXPECT_LT(us / in_place, kSlower - 0.05);
    EXPECT_GT(us / (in_place * kSlower), 1.0 - 0.15);
  }
  // Members of a group are held against the same line: what they cost is not what places differ by.
  EXPECT_NEAR(calibration->profile.gamma_us, kGammaUs * 1.3, 0.4);
}

TEST(Calibration, RefusesAMachineThatDeliversOtherBits) {
  SweepResult sweep = MadeSweep(CollectiveKind::kAllGather, 1.0);
  sweep.collectives[3].wrong = 7;
  EXPECT_THAT(Calibrated(sweep).status().message(), HasSubstr("16384 bytes of bf16: 7 elements"));
}

}  // namespace
}  // namespace bucketd::agent
