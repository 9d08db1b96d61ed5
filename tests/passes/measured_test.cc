// Measured costs: rows of a profile, how they enter the costs of a graph, and how samples become
// rows that no single reporter can bend far.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/cost/device_model.h"
#include "passes/cost/measured_fit.h"
#include "passes/io/cost_json.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"
#include "proto/costs.pb.h"
#include "tests/passes/test_data.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;

LinkClass Gather() {
  LinkClass of;
  of.kind = CollectiveKind::kAllGather;
  of.group_size = 8;
  of.ranks_per_node = 8;
  of.dtype = DType::kBF16;
  return of;
}

MeasuredLink Row(const LinkClass& of, double alpha_us, double busbw) {
  MeasuredLink row;
  row.of = of;
  row.alpha_us = alpha_us;
  row.busbw_bytes_per_s = busbw;
  return row;
}

// A machine that takes `alpha_us` and moves `busbw` bytes a second, seen by reporters with noise.
class Machine {
 public:
  Machine(double alpha_us, double busbw) : alpha_us_(alpha_us), busbw_(busbw) {}

  double Us(const LinkClass& of, double bytes) const {
    return alpha_us_ + WireFactor(of.kind, of.group_size) * bytes / busbw_ * 1e6;
  }

  // `rounds` samples of each power of two from 4 KiB to 256 MiB, within `noise` of the truth.
  void Report(const std::string& reporter, int rounds, double noise, ClassSamples& out,
              double factor = 1.0) {
    for (int64_t bytes = 4096; bytes <= int64_t{256} << 20; bytes *= 2) {
      for (int i = 0; i < rounds; ++i) {
        const double us = Us(out.of, static_cast<double>(bytes)) * factor * (1.0 + noise * Next());
        out.samples.push_back({bytes, static_cast<int64_t>(us * 1e6), 1, reporter});
      }
    }
  }

 private:
  // From -1 to 1, the same in every run.
  double Next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state_ >> 11) / static_cast<double>(uint64_t{1} << 52) - 1.0;
  }

  const double alpha_us_, busbw_;
  uint64_t state_ = 42;
};

TEST(MeasuredLinks, StandInTheFingerprintOnlyWhereThereAreAny) {
  CostProfile profile;
  const std::string without = profile.Fingerprint();
  EXPECT_THAT(without, ::testing::Not(HasSubstr("links")));
  profile.links = {Row(Gather(), 10.0, 3e11)};
  const std::string with = profile.Fingerprint();
  EXPECT_NE(with, without);
  for (auto change : std::vector<void (*)(MeasuredLink&)>{
           [](MeasuredLink& l) { l.alpha_us = std::nextafter(l.alpha_us, 20.0); },
           [](MeasuredLink& l) { l.busbw_bytes_per_s += 1e6; },
           [](MeasuredLink& l) { l.of.link_class = "ib"; },
           [](MeasuredLink& l) { l.of.group_size = 16; },
           [](MeasuredLink& l) { l.of.ranks_per_node = 4; },
           [](MeasuredLink& l) { l.of.dtype = DType::kF32; },
           [](MeasuredLink& l) { l.of.kind = CollectiveKind::kAllReduce; }}) {
    CostProfile other = profile;
    change(other.links[0]);
    EXPECT_NE(other.Fingerprint(), with);
  }
  profile.links[0].samples = 7;  // no cost depends on it
  EXPECT_EQ(profile.Fingerprint(), with);
}

TEST(MeasuredLinks, SurviveJsonAndTheWire) {
  CostProfile profile = BuiltInProfiles()[0];
  LinkClass other = Gather();
  other.link_class = "rail/3";
  profile.links = {Row(Gather(), 10.25, 3e11), Row(other, 0.0, 1.0 / 3.0 * 1e12)};
  profile.links[1].samples = 9;
  profile.links[1].reporters = 3;
  profile.links[1].error = 0.015;
  ASSERT_TRUE(profile.Validate().ok()) << profile.Validate();
  const absl::StatusOr<CostProfile> read = ProfileFromJson(ProfileToJson(profile), "x");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Fingerprint(), profile.Fingerprint());
  EXPECT_EQ(read->links[1].reporters, 3);
  EXPECT_EQ(read->links[1].error, 0.015);
  v1::CostProfile message;
  ProfileToProto(profile, message);
  const absl::StatusOr<CostProfile> wired = ProfileFromProto(message);
  ASSERT_TRUE(wired.ok()) << wired.status();
  EXPECT_EQ(wired->Fingerprint(), profile.Fingerprint());
  EXPECT_EQ(wired->links[1].samples, 9);
}

TEST(CostProfile, WhatAMessageDoesNotSayHasItsDefault) {
  CostProfile profile;
  profile.gamma_us = 7.0;
  v1::CostProfile message;
  ProfileToProto(profile, message);
  message.clear_device();
  message.clear_comm_copy_share();
  const absl::StatusOr<CostProfile> wired = ProfileFromProto(message);
  ASSERT_TRUE(wired.ok()) << wired.status();
  EXPECT_EQ(wired->Fingerprint(), profile.Fingerprint());
}

TEST(MeasuredLinks, AreRefusedWithTheirClassWhereTheyMakeNoSense) {
  CostProfile profile;
  profile.links = {Row(Gather(), -1.0, 3e11)};
  EXPECT_THAT(profile.Validate().message(), HasSubstr("all_gather bf16 over 8 ranks, 8 a node"));
  profile.links = {Row(Gather(), 1.0, 0.0)};
  EXPECT_THAT(profile.Validate().message(), HasSubstr("busbw_bytes_per_s"));
  profile.links = {Row(Gather(), 1.0, 1e9), Row(Gather(), 1.0, 1e9)};
  EXPECT_THAT(profile.Validate().message(), HasSubstr("each once"));
  profile.links = {Row(Gather(), 1.0, 1e9)};
  profile.links[0].of.ranks_per_node = 9;
  EXPECT_THAT(profile.Validate().message(), HasSubstr("ranks_per_node is 9"));
  profile.links[0].of = Gather();
  profile.links[0].of.link_class = "two words";
  EXPECT_THAT(profile.Validate().message(), HasSubstr("link_class"));
  v1::CostProfile message;
  ProfileToProto(CostProfile(), message);
  message.add_links()->set_kind(static_cast<v1::CollectiveKind>(261));  // 5 if cut to a byte
  EXPECT_FALSE(ProfileFromProto(message).ok());
  message.clear_links();
  for (size_t i = 0; i <= kMaxMeasuredLinks; ++i) message.add_links();
  EXPECT_THAT(ProfileFromProto(message).status().message(), HasSubstr("at most 4096"));
}

TEST(MeasuredLinks, OfAnotherDTypeStandInWhereTheirOwnIsMissing) {
  LinkClass f32 = Gather();
  f32.dtype = DType::kF32;
  LinkClass elsewhere = Gather();
  elsewhere.link_class = "ib";
  const std::vector<MeasuredLink> links = {Row(Gather(), 1.0, 1e9), Row(f32, 2.0, 1e9)};
  ASSERT_TRUE(ValidateLinks(links).ok()) << ValidateLinks(links);
  EXPECT_EQ(FindLink(links, f32), &links[1]);
  EXPECT_EQ(FindLink(links, Gather()), &links[0]);
  LinkClass f16 = Gather();
  f16.dtype = DType::kF16;
  EXPECT_EQ(FindLink(links, f16), &links[0]);
  EXPECT_EQ(FindLink(links, elsewhere), nullptr);
  EXPECT_EQ(FindLink({}, f16), nullptr);
}

TEST(MeasuredLinks, TakeThePlaceOfTheModelAndOfScalesForTheirClassAlone) {
  const CapturedGraph captured = bucketd::testing::ReadTestGraph("llama3_debug_hsdp2x4_rsar.bw");
  const Graph& graph = captured.graph;
  CostProfile profile = *FindProfile("slow_network");
  const Collective& first = graph.collectives()[0];
  const Group& group = graph.group(first);
  const auto dim = std::find_if(captured.mesh.dims.begin(), captured.mesh.dims.end(),
                                [&](const MeshDim& d) { return d.name == group.mesh_dim; });
  ASSERT_NE(dim, captured.mesh.dims.end());
  const LinkClass of = {first.kind, dim->link_class, group.size,
                        RanksPerNode(group.size, dim->ranks_per_node), first.dtype};
  const Costs before = *Costs::FromDeviceModel(graph, captured.mesh, profile);
  profile.links = {Row(of, 33.0, 2e9)};
  const Costs after = *Costs::FromDeviceModel(graph, captured.mesh, profile);
  int measured = 0, others = 0;
  for (size_t i = 0; i < graph.collectives().size(); ++i) {
    const Collective& c = graph.collectives()[i];
    const auto id = static_cast<CollectiveId>(i);
    if (c.kind == first.kind && c.group == first.group) {
      ++measured;
      const double us = 33.0 + WireFactor(c.kind, group.size) * 1e6 / 2e9 * 1e6;
      EXPECT_NEAR(static_cast<double>(after.CollectivePs(id, 1'000'000, 1)), us * 1e6, 2.0);
    } else if (c.kind != first.kind) {
      ++others;
      EXPECT_EQ(after.CollectivePs(id, 1'000'000, 1), before.CollectivePs(id, 1'000'000, 1));
    }
  }
  EXPECT_GT(measured, 0);
  EXPECT_GT(others, 0);
  // The same figures from a file that states its own, and from the class alone.
  StatedCosts stated = captured.costs;
  UseMeasuredLinks(graph, captured.mesh, profile, stated);
  const Costs from_file = *Costs::FromFile(graph, stated, profile);
  EXPECT_EQ(from_file.CollectivePs(0, 1'000'000, 1), after.CollectivePs(0, 1'000'000, 1));
  EXPECT_EQ(LinkUnder(profile, of).alpha_us, 33.0);
}

TEST(MeasuredLinks, UnderAProfileWithoutRowsAreWhatItsCostsAre) {
  const CapturedGraph captured = bucketd::testing::ReadTestGraph("llama3_debug_fsdp8.bw");
  const Graph& graph = captured.graph;
  const CostProfile profile = *FindProfile("slow_network");
  const Costs costs = *Costs::FromDeviceModel(graph, captured.mesh, profile);
  for (size_t i = 0; i < graph.collectives().size(); ++i) {
    const Collective& c = graph.collectives()[i];
    const int32_t size = graph.group(c).size;
    const int32_t in_node = RanksPerNode(size, captured.mesh.dims[0].ranks_per_node);
    const StatedCosts::Link link = LinkUnder(profile, {c.kind, "", size, in_node, c.dtype});
    EXPECT_NEAR(static_cast<double>(costs.AlphaPs(static_cast<CollectiveId>(i))),
                link.alpha_us * 1e6, 1.0);
  }
}

TEST(Fit, FindsLatencyAndBandwidthThroughNoise) {
  const CostProfile base;
  ClassSamples of{Gather(), {}};
  const StatedCosts::Link model = LinkUnder(base, of.of);
  Machine machine(model.alpha_us * 1.7, model.busbw_bytes_per_s * 0.6);
  for (const char* host : {"a", "b", "c"}) machine.Report(host, 5, 0.1, of);
  const ProfileFit fit = FitProfile(base, {&of, 1}, {});
  ASSERT_EQ(fit.profile.links.size(), 1U);
  EXPECT_TRUE(fit.moved);
  EXPECT_TRUE(fit.classes[0].quorum);
  EXPECT_FALSE(fit.classes[0].clamped);
  EXPECT_EQ(fit.classes[0].reporters, 3);
  EXPECT_NEAR(fit.profile.links[0].alpha_us / (model.alpha_us * 1.7), 1.0, 0.05);
  EXPECT_NEAR(fit.profile.links[0].busbw_bytes_per_s / (model.busbw_bytes_per_s * 0.6), 1.0, 0.05);
  EXPECT_LT(fit.profile.links[0].error, 0.1);
  EXPECT_TRUE(fit.profile.Validate().ok());
}

TEST(Fit, IsTheSameInWhateverOrderSamplesCame) {
  const CostProfile base;
  ClassSamples of{Gather(), {}};
  Machine machine(40.0, 2e11);
  for (const char* host : {"a", "b", "c", "d"}) machine.Report(host, 4, 0.2, of);
  const std::string forwards = FitProfile(base, {&of, 1}, {}).profile.Fingerprint();
  std::reverse(of.samples.begin(), of.samples.end());
  EXPECT_EQ(FitProfile(base, {&of, 1}, {}).profile.Fingerprint(), forwards);
}

// What a profile says of a size of message, against what it said before.
double Ratio(const CostProfile& now, const CostProfile& before, const LinkClass& of, double bytes) {
  const auto us = [&](const CostProfile& p) {
    const StatedCosts::Link link = LinkUnder(p, of);
    return link.alpha_us +
           WireFactor(of.kind, of.group_size) * bytes / link.busbw_bytes_per_s * 1e6;
  };
  return us(now) / us(before);
}

TEST(Fit, LetsALoneReporterMoveNothingBeyondItsFactor) {
  const CostProfile base;
  for (const double lie : {1000.0, 0.001, 10.0, 0.1}) {
    ClassSamples of{Gather(), {}};
    const StatedCosts::Link model = LinkUnder(base, of.of);
    Machine machine(model.alpha_us, model.busbw_bytes_per_s);
    machine.Report("liar", 500, 0.0, of, lie);
    const ProfileFit fit = FitProfile(base, {&of, 1}, {});
    EXPECT_TRUE(fit.classes[0].clamped) << lie;
    EXPECT_FALSE(fit.classes[0].quorum);
    double furthest = 1.0;
    for (double bytes = 1.0; bytes < 1e12; bytes *= 3.0) {
      for (const DType dtype : {DType::kBF16, DType::kF32, DType::kBool}) {
        LinkClass asked = of.of;
        asked.dtype = dtype;
        const double ratio = Ratio(fit.profile, base, asked, bytes);
        EXPECT_LE(ratio, 1.25 * (1 + 1e-9));
        EXPECT_GE(ratio, (1 - 1e-9) / 1.25);
        furthest = std::max({furthest, ratio, 1.0 / ratio});
      }
    }
    EXPECT_NEAR(furthest, 1.25, 1e-6) << "the bound is where it says";
  }
}

TEST(Fit, FollowsThreeHonestReportersWhateverAFourthSays) {
  const CostProfile base;
  const StatedCosts::Link model = LinkUnder(base, Gather());
  for (const double lie : {50.0, 0.02}) {
    ClassSamples of{Gather(), {}};
    Machine machine(model.alpha_us * 1.5, model.busbw_bytes_per_s / 1.5);
    for (const char* host : {"a", "b", "c"}) machine.Report(host, 3, 0.01, of);
    machine.Report("liar", 1000, 0.0, of, lie);
    const ProfileFit fit = FitProfile(base, {&of, 1}, {});
    for (double bytes = 1e4; bytes < 1e9; bytes *= 10.0) {
      EXPECT_NEAR(Ratio(fit.profile, base, of.of, bytes), 1.5, 0.05) << lie;
    }
  }
}

TEST(Fit, LeavesSizesThatOneReporterAloneMeasuredOutWhereOthersAgree) {
  const CostProfile base;
  ClassSamples of{Gather(), {}};
  const StatedCosts::Link model = LinkUnder(base, of.of);
  Machine machine(model.alpha_us * 1.5, model.busbw_bytes_per_s / 1.5);
  for (const char* host : {"a", "b", "c"}) machine.Report(host, 3, 0.01, of);
  // Thirty sizes of which nobody else has spoken, all of them absurd.
  for (int64_t bytes = int64_t{1} << 29; bytes <= int64_t{1} << 40; bytes *= 2) {
    for (int i = 0; i < 50; ++i) of.samples.push_back({bytes, 2000, 1, "liar"});
  }
  for (int64_t bytes = 1; bytes <= 2048; bytes *= 2) {
    for (int i = 0; i < 50; ++i) of.samples.push_back({bytes, 900'000'000'000, 1, "liar"});
  }
  const ProfileFit fit = FitProfile(base, {&of, 1}, {});
  EXPECT_NEAR(Ratio(fit.profile, base, of.of, 1e4), 1.5, 0.05);
  EXPECT_NEAR(Ratio(fit.profile, base, of.of, 1e8), 1.5, 0.05);
}

TEST(Fit, CountsAStragglersSamplesAsOutliers) {
  const CostProfile base;
  ClassSamples of{Gather(), {}};
  const StatedCosts::Link model = LinkUnder(base, of.of);
  Machine machine(model.alpha_us * 1.5, model.busbw_bytes_per_s / 1.5);
  machine.Report("a", 9, 0.01, of);
  const size_t honest = of.samples.size();
  for (size_t i = 0; i < honest; i += 9) {
    MeasuredSample late = of.samples[i];
    late.picoseconds *= 20;  // a peer came late
    of.samples.push_back(late);
  }
  FitOptions options;
  options.alone_factor = 4.0;
  const ProfileFit fit = FitProfile(base, {&of, 1}, options);
  EXPECT_EQ(fit.classes[0].outliers, static_cast<int32_t>(of.samples.size() - honest));
  EXPECT_NEAR(Ratio(fit.profile, base, of.of, 1e6), 1.5, 0.03);
}

TEST(Fit, LeavesWhatTheSizesDoNotShow) {
  const CostProfile base;
  const StatedCosts::Link model = LinkUnder(base, Gather());
  FitOptions options;
  options.alone_factor = 4.0;
  const Machine machine(model.alpha_us * 2.0, model.busbw_bytes_per_s / 2.0);
  std::pair<bool, bool> shown;  // latency, bandwidth
  const auto fit = [&](int64_t from, int64_t to) {
    ClassSamples of{Gather(), {}};
    for (int64_t bytes = from; bytes <= to; bytes *= 2) {
      const auto ps = static_cast<int64_t>(machine.Us(of.of, static_cast<double>(bytes)) * 1e6);
      for (int i = 0; i < 8; ++i) of.samples.push_back({bytes, ps, 1, "a"});
    }
    const ProfileFit result = FitProfile(base, {&of, 1}, options);
    shown = {result.classes[0].latency_shown, result.classes[0].bandwidth_shown};
    return LinkUnder(result.profile, Gather());
  };
  const StatedCosts::Link small = fit(1024, 32768);
  EXPECT_EQ(shown, std::pair(true, false));
  EXPECT_NEAR(small.alpha_us / model.alpha_us, 2.0, 0.05);
  const StatedCosts::Link large = fit(int64_t{1} << 30, int64_t{1} << 34);
  EXPECT_EQ(shown, std::pair(false, true));
  EXPECT_NEAR(large.busbw_bytes_per_s / model.busbw_bytes_per_s, 0.5, 0.02);
  // One size says nothing of the two apart: both move alike.
  const StatedCosts::Link one = fit(1 << 20, 1 << 20);
  EXPECT_EQ(shown, std::pair(false, false));
  EXPECT_NEAR(one.alpha_us / model.alpha_us, 2.0, 0.01);
  EXPECT_NEAR(one.busbw_bytes_per_s / model.busbw_bytes_per_s, 0.5, 0.01);
}

TEST(Fit, MovesNothingForNoiseOrForTooFewSamples) {
  const CostProfile base;
  const StatedCosts::Link model = LinkUnder(base, Gather());
  ClassSamples of{Gather(), {}};
  Machine(model.alpha_us, model.busbw_bytes_per_s).Report("a", 9, 0.01, of);
  ProfileFit fit = FitProfile(base, {&of, 1}, {});
  EXPECT_FALSE(fit.moved);
  EXPECT_EQ(fit.profile.Fingerprint(), base.Fingerprint());
  for (MeasuredSample& s : of.samples) s.picoseconds *= 2;
  of.samples.resize(7);
  fit = FitProfile(base, {&of, 1}, {});
  EXPECT_FALSE(fit.moved);
  of.samples.push_back(of.samples.back());
  EXPECT_TRUE(FitProfile(base, {&of, 1}, {}).moved) << "eight are enough";
  EXPECT_FALSE(FitProfile(base, {}, {}).moved);
}

TEST(Fit, ReadsTheCostOfFurtherLaunchesFromGroupedOnes) {
  CostProfile base;
  ASSERT_EQ(base.gamma_us, 2.0);
  ClassSamples of{Gather(), {}};
  const StatedCosts::Link model = LinkUnder(base, of.of);
  Machine machine(model.alpha_us, model.busbw_bytes_per_s);
  for (const char* host : {"a", "b", "c"}) {
    machine.Report(host, 3, 0.0, of);
    for (const int32_t launches : {4, 16, 64}) {
      for (int i = 0; i < 3; ++i) {
        const double us = machine.Us(of.of, 1e6) + (launches - 1) * 3.5;
        of.samples.push_back({1'000'000, static_cast<int64_t>(us * 1e6), launches, host});
      }
    }
  }
  ProfileFit fit = FitProfile(base, {&of, 1}, {});
  EXPECT_NEAR(fit.profile.gamma_us, 3.5, 0.01);
  EXPECT_TRUE(fit.gamma_quorum);
  EXPECT_FALSE(fit.gamma_clamped);
  std::erase_if(of.samples, [](const MeasuredSample& s) { return s.reporter != "a"; });
  fit = FitProfile(base, {&of, 1}, {});
  EXPECT_NEAR(fit.profile.gamma_us, 2.5, 1e-9) << "alone, by a quarter";
  EXPECT_TRUE(fit.gamma_clamped);
}

TEST(CostReports, AreReadFromJson) {
  const absl::StatusOr<CostReport> report = CostReportFromJson(
      R"({"profile": "site", "reporter": "node7", "tool": "probe 1", "samples": [
          {"kind": "all_reduce", "dtype": "f32", "group_size": 16, "ranks_per_node": 8,
           "link_class": "ib", "mesh_dim": "dp", "bytes": 1024, "picoseconds": 5000000},
          {"kind": "all_gather", "dtype": "bf16", "group_size": 4, "mode": "grouped",
           "launches": 3, "bytes": 1, "picoseconds": 1000}]})");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->by.reporter, "node7");
  ASSERT_EQ(report->samples.size(), 2U);
  EXPECT_EQ(report->samples[0].of.ranks_per_node, 8);
  EXPECT_EQ(report->samples[1].of.ranks_per_node, 4) << "none said: all on one node";
  EXPECT_EQ(report->samples[1].launches, 3);
}

TEST(CostReports, AreRefusedWithThePlaceOfTheMistake) {
  const auto error = [](const std::string& sample) {
    return std::string(
        CostReportFromJson(
            absl::StrCat(R"({"profile": "p", "reporter": "r", "samples": [)", sample, "]}"))
            .status()
            .message());
  };
  const std::string good =
      R"("kind": "all_gather", "dtype": "bf16", "group_size": 4, "bytes": 1, "picoseconds": 1000)";
  EXPECT_EQ(error("{" + good + "}"), "");
  EXPECT_THAT(error("{" + good + "}, {}"), HasSubstr("samples[1].kind: missing"));
  EXPECT_THAT(error("{" + good + R"(, "byte": 3})"), HasSubstr("unknown field \"byte\""));
  EXPECT_THAT(error(R"({"kind": "gather"})"), HasSubstr("\"gather\" is unknown"));
  EXPECT_THAT(error("{" + good + R"(, "mode": "packed", "launches": 2})"), HasSubstr("one launch"));
  EXPECT_THAT(error("{" + good + R"(, "launches": 0})"), HasSubstr("launches is 0"));
  EXPECT_THAT(error("7"), HasSubstr("samples[0]: expected an object"));
  EXPECT_THAT(CostReportFromJson("{}").status().message(), HasSubstr("profile: missing"));
}

TEST(CostReports, OnTheWireKeepTheirClassAndAreChecked) {
  CollectiveSample sample;
  sample.of = Gather();
  sample.bytes = 100;
  sample.picoseconds = 5000;
  sample.launches = 4;
  v1::CollectiveSample message;
  SampleToProto(sample, message);
  EXPECT_EQ(message.mode(), v1::BUCKET_MODE_GROUPED);
  const auto read = SampleFromProto(message);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->of, sample.of);
  EXPECT_EQ(read->launches, 4);
  message.set_launches(1);
  EXPECT_FALSE(SampleFromProto(message).ok()) << "grouped, of one";
  message.set_mode(v1::BUCKET_MODE_UNSPECIFIED);
  EXPECT_TRUE(SampleFromProto(message).ok());
  message.set_bytes(0);
  EXPECT_THAT(SampleFromProto(message).status().message(), HasSubstr("bytes is 0"));
  message.set_bytes(1);
  message.set_picoseconds(999);
  EXPECT_THAT(SampleFromProto(message).status().message(), HasSubstr("picoseconds is 999"));
  message.set_picoseconds(1000);
  message.set_group_size(4'000'000'000U);
  EXPECT_THAT(SampleFromProto(message).status().message(), HasSubstr("group_size"));
}

}  // namespace
}  // namespace bucketd
