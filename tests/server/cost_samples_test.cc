// Samples of costs: what is kept, what one reporter can fill or move, and candidates made of them.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "passes/cost/device_model.h"
#include "server/costs/cost_proposals.h"
#include "tests/server/costs_on_disk.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;

CostReport Report(const std::string& reporter, double factor, int rounds = 4,
                  const std::string& profile = "h100_nvlink") {
  CostReport report;
  report.profile = profile;
  report.by = {reporter, "job-1", "probe", "H100"};
  CollectiveSample sample;
  sample.of = {CollectiveKind::kAllGather, "", 8, 8, DType::kBF16};
  const StatedCosts::Link link = LinkUnder(CostProfile(), sample.of);
  for (sample.bytes = 4096; sample.bytes <= int64_t{64} << 20; sample.bytes *= 4) {
    const double us = link.alpha_us + WireFactor(sample.of.kind, 8) *
                                          static_cast<double>(sample.bytes) /
                                          link.busbw_bytes_per_s * 1e6;
    sample.picoseconds = static_cast<int64_t>(us * factor * 1e6);
    for (int i = 0; i < rounds; ++i) report.samples.push_back(sample);
  }
  return report;
}

TEST_F(CostsOnDisk, SamplesSurviveARestartWithWhoMeasuredThem) {
  const CostReport report = Report("node1", 1.5);
  const auto taken = samples_->Add(report, "host:node1");
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->accepted, static_cast<int32_t>(report.samples.size()));
  const auto before = samples_->Get("h100_nvlink");
  Restart();
  const auto after = samples_->Get("h100_nvlink");
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].of, before[0].of);
  ASSERT_EQ(after[0].samples.size(), report.samples.size());
  EXPECT_EQ(after[0].samples[0].reporter, "host:node1");
  EXPECT_EQ(after[0].samples[0].picoseconds, before[0].samples[0].picoseconds);
  EXPECT_TRUE(samples_->Get("slow_network").empty());
  const std::vector<HeldClass> held = samples_->List("");
  ASSERT_EQ(held.size(), 1U);
  EXPECT_EQ(held[0].voters, 1);
  EXPECT_EQ(held[0].newest_unix_ms, now_ms_);
}

TEST_F(CostsOnDisk, OldSamplesAreForgotten) {
  ASSERT_TRUE(samples_->Add(Report("a", 1.5), "host:a").ok());
  now_ms_ += sample_limits_.max_age_ms / 2;
  ASSERT_TRUE(samples_->Add(Report("b", 1.5), "host:b").ok());
  now_ms_ += sample_limits_.max_age_ms / 2 + 1;
  ASSERT_EQ(samples_->List("").size(), 1U);
  EXPECT_EQ(samples_->List("")[0].voters, 1);
  now_ms_ += sample_limits_.max_age_ms;
  EXPECT_TRUE(samples_->List("").empty());
  EXPECT_EQ(metrics_->samples_held.Value(), 0);
  Restart();
  EXPECT_TRUE(samples_->List("").empty());
  EXPECT_TRUE(store_->ListRecords(Shelf::kCostSamples, "", "", 10)->empty());
}

TEST_F(CostsOnDisk, AFloodPushesOutItsOwnSamplesFirst) {
  ASSERT_TRUE(samples_->Add(Report("honest", 1.5), "ipv4:10.0.0.1").ok());
  const auto of_honest = [&] {
    const auto held = samples_->Get("h100_nvlink");
    return std::count_if(held[0].samples.begin(), held[0].samples.end(),
                         [](const MeasuredSample& s) { return s.reporter == "ipv4:10.0.0.1"; });
  };
  const auto before = of_honest();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(samples_->Add(Report(absl::StrCat("fake", i), 9.0, 1000), "ipv4:10.0.0.66").ok());
  }
  EXPECT_EQ(of_honest(), before);
  EXPECT_EQ(samples_->List("")[0].voters, 2) << "one address, one voter, whatever hosts it names";
  EXPECT_EQ(samples_->List("")[0].samples, before + 8 * 8) << "eight of each of eight sizes";
}

TEST_F(CostsOnDisk, AllBoundsHoldAtTheLimitAndOneBeyond) {
  sample_limits_.total = 8;
  sample_limits_.classes = 2;
  sample_limits_.voters = 2;
  Restart();
  const auto one = [](int32_t group, int64_t bytes) {
    CostReport report;
    report.profile = "h100_nvlink";
    report.by.reporter = "r";
    CollectiveSample sample;
    sample.of = {CollectiveKind::kAllReduce, "", group, group, DType::kF32};
    sample.bytes = bytes;
    sample.picoseconds = 1'000'000;
    report.samples = {sample};
    return report;
  };
  const auto accepted = [&](const CostReport& report, const std::string& voter) {
    const auto taken = samples_->Add(report, voter);
    EXPECT_TRUE(taken.ok());
    EXPECT_EQ(taken->accepted + taken->limited, static_cast<int32_t>(report.samples.size()));
    return taken->accepted;
  };
  EXPECT_EQ(accepted(one(2, 1), "a"), 1);
  EXPECT_EQ(accepted(one(4, 1), "a"), 1);
  EXPECT_EQ(accepted(one(8, 1), "a"), 0) << "a third class";
  now_ms_ += 1;
  EXPECT_EQ(accepted(one(2, 1), "b"), 1);
  now_ms_ += 1;
  EXPECT_EQ(accepted(one(2, 1), "c"), 1);
  EXPECT_EQ(samples_->List("")[0].voters, 2) << "the quietest one went";
  for (int64_t bytes = 2; bytes <= 32; bytes *= 2) {
    EXPECT_EQ(accepted(one(2, bytes), "b"), 1) << bytes;
  }
  EXPECT_EQ(metrics_->samples_held.Value(), 8);
  EXPECT_EQ(accepted(one(2, 64), "b"), 0) << "a ninth sample";
  EXPECT_EQ(metrics_->samples(SampleResult::kLimited).Value(), 2);
}

TEST_F(CostsOnDisk, ClassesBehindADamagedOneAreRead) {
  for (int32_t size = 2; size <= 80; ++size) {
    CostReport report = Report("a", 1.5, 1);
    for (CollectiveSample& sample : report.samples) sample.of.group_size = size;
    ASSERT_TRUE(samples_->Add(report, "host:a").ok());
  }
  Spoil("h100_nvlink/all_gather/bf16/10/");
  Restart();
  EXPECT_EQ(metrics_->samples_held.Value(), 78 * 8);
}

TEST_F(CostsOnDisk, RecordsOfSamplesThatMakeNoSenseAreCountedAndLeftOut) {
  ASSERT_TRUE(samples_->Add(Report("a", 1.5), "host:a").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kCostSamples, "h100_nvlink/x", "garbage").ok());
  Restart();
  EXPECT_EQ(samples_->List("").size(), 1U);
  EXPECT_EQ(metrics_->records_unreadable.Value(), 1);
}

TEST(Voters, AreIdentitiesElseHostsAndOnAUnixSocketWhomTheReportNames) {
  EXPECT_EQ(VoterOf("", "ipv4:10.0.0.3:5123", "a"), VoterOf("", "ipv4:10.0.0.3:9", "b"));
  EXPECT_NE(VoterOf("", "ipv4:10.0.0.3:5123", "a"), VoterOf("", "ipv4:10.0.0.4:5123", "a"));
  EXPECT_EQ(VoterOf("", "ipv6:[2001:db8::1]:7", "a"), VoterOf("", "ipv6:[2001:db8::2]:7", "b"))
      << "a machine takes as many addresses of its network as it likes";
  EXPECT_NE(VoterOf("", "ipv6:[2001:db8::1]:7", "a"), VoterOf("", "ipv6:[2001:db9::1]:7", "a"));
  for (const char* own : {"ipv4:127.0.0.1:80", "ipv4:127.1.2.3:80", "ipv6:[::1]:80",
                          "ipv6:%5B::1%5D:80", "ipv6:[::ffff:127.0.0.1]:80"}) {
    EXPECT_EQ(VoterOf("", own, "a"), "loopback") << own;
  }
  EXPECT_EQ(VoterOf("", "unix:/run/x", "a"), "host:a");
  EXPECT_EQ(VoterOf("", "unix:", "b"), "host:b");
  EXPECT_EQ(VoterOf("DNS:a", "ipv4:10.0.0.3:1", "x"), VoterOf("DNS:a", "unix:", "y"));
  EXPECT_NE(VoterOf("DNS:a", "ipv4:10.0.0.3:1", "x"), VoterOf("DNS:b", "ipv4:10.0.0.3:1", "x"));
}

// As an earlier version has stored them.
TEST_F(CostsOnDisk, VotersOfOneNetworkThatAreStoredAreOne) {
  ASSERT_TRUE(samples_->Add(Report("a", 1.5), "ipv6:[2001:db8::1]").ok());
  ASSERT_TRUE(samples_->Add(Report("b", 1.5), "ipv6:[2001:db8::2]").ok());
  ASSERT_TRUE(samples_->Add(Report("c", 1.5), "ipv4:10.0.0.3").ok());
  Restart();
  EXPECT_EQ(samples_->List("")[0].voters, 2);
}

// Proposals.

TEST_F(CostsOnDisk, AProposalIsACandidateThatAPersonPromotes) {
  EXPECT_EQ(ReasonOf(ProposeProfile("h100_nvlink", *catalog_, *samples_, {}, *metrics_).status()),
            "NO_SAMPLES");
  for (const char* host : {"a", "b", "c"}) {
    ASSERT_TRUE(samples_->Add(Report(host, 1.5), absl::StrCat("host:", host)).ok());
  }
  const auto proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, {}, *metrics_);
  ASSERT_TRUE(proposal.ok()) << proposal.status();
  ASSERT_TRUE(proposal->version.has_value());
  EXPECT_EQ(proposal->version->version, 2);
  EXPECT_FALSE(proposal->promoted);
  EXPECT_THAT(proposal->version->about, HasSubstr("h100_nvlink@1"));
  EXPECT_EQ(Meaning("h100_nvlink@latest"), "h100_nvlink@1");
  const auto candidate = *catalog_->Resolve("h100_nvlink@2", "");
  ASSERT_EQ(candidate->links.size(), 1U);
  EXPECT_NEAR(
      candidate->links[0].alpha_us / LinkUnder(CostProfile(), candidate->links[0].of).alpha_us, 1.5,
      0.01);
  const auto again = ProposeProfile("h100_nvlink", *catalog_, *samples_, {}, *metrics_);
  EXPECT_EQ(again->version->version, 2) << "the same samples, the same version";
  ASSERT_TRUE(Promote("h100_nvlink", 2).ok());
  const auto settled = ProposeProfile("h100_nvlink", *catalog_, *samples_, {}, *metrics_);
  ASSERT_TRUE(settled.ok());
  EXPECT_FALSE(settled->version.has_value()) << "it says what they say";
}

TEST_F(CostsOnDisk, WithAutomaticPromotionAQuorumIsEnoughAndALoneVoiceIsNot) {
  CostOptions options;
  options.auto_promote = true;
  ASSERT_TRUE(samples_->Add(Report("a", 1.2), "host:a").ok());
  auto proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, options, *metrics_);
  ASSERT_TRUE(proposal.ok());
  EXPECT_FALSE(proposal->promoted);
  for (const char* host : {"b", "c"}) {
    ASSERT_TRUE(samples_->Add(Report(host, 1.2), absl::StrCat("host:", host)).ok());
  }
  proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, options, *metrics_);
  ASSERT_TRUE(proposal.ok());
  EXPECT_TRUE(proposal->promoted);
  EXPECT_EQ(Meaning("latest"), ProfileId(**catalog_->Resolve("h100_nvlink@latest", "")));
  EXPECT_EQ(metrics_->promotions(PromotionKind::kAutomatic).Value(), 1);
  // Beyond what one version may move nothing goes out by itself.
  for (const char* host : {"a", "b", "c"}) {
    ASSERT_TRUE(samples_->Add(Report(host, 50.0, 8), absl::StrCat("host:", host)).ok());
  }
  proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, options, *metrics_);
  ASSERT_TRUE(proposal.ok() && proposal->version.has_value());
  EXPECT_FALSE(proposal->promoted);
}

TEST_F(CostsOnDisk, AHostileReporterMovesACandidateNoFurtherThanItsBound) {
  CostOptions options;
  for (const double lie : {1e-3, 1e3}) {
    ASSERT_TRUE(samples_->Add(Report("liar", lie, 100), "ipv4:10.0.0.66").ok());
    const auto proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, options, *metrics_);
    ASSERT_TRUE(proposal.ok() && proposal->version.has_value());
    const LinkClass of = proposal->fit.classes[0].of;
    const StatedCosts::Link link = LinkUnder(proposal->fit.profile, of);
    const StatedCosts::Link was = LinkUnder(CostProfile(), of);
    EXPECT_LE(link.alpha_us, was.alpha_us * 1.25 * (1 + 1e-9));
    EXPECT_GE(link.alpha_us, was.alpha_us / 1.25 * (1 - 1e-9));
    EXPECT_LE(link.busbw_bytes_per_s, was.busbw_bytes_per_s * 1.25 * (1 + 1e-9));
    EXPECT_GE(link.busbw_bytes_per_s, was.busbw_bytes_per_s / 1.25 * (1 - 1e-9));
    EXPECT_TRUE(proposal->fit.classes[0].clamped);
  }
  // However often it reports: what counts is the promoted version, and that did not move.
  EXPECT_EQ(Meaning("latest"), "h100_nvlink@1");
}

}  // namespace
}  // namespace bucketd
