// Costs: profiles, the referee's formulas, and the device model against files that state their own
// times.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "passes/cost/device_model.h"
#include "passes/io/fx_json.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"
#include "proto/costs.pb.h"
#include "tests/passes/pass_test_util.h"
#include "tests/passes/test_data.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;

TEST(Profiles, AreTheRefereesAndOneForLoopback) {
  const std::string text =
      bucketd::testing::ReadFile(bucketd::testing::TestDataPath("referee/profiles.json"));
  const nlohmann::json referee = nlohmann::json::parse(text);
  EXPECT_EQ(BuiltInProfiles().size(), referee.size() + 1);
  EXPECT_EQ(BuiltInProfiles().front().name, "h100_nvlink");
  EXPECT_EQ(BuiltInProfiles().back().name, "cpu_loopback");
  for (const auto& [name, fields] : referee.items()) {
    const absl::StatusOr<CostProfile> built_in = FindProfile(name);
    ASSERT_TRUE(built_in.ok()) << built_in.status();
    const absl::StatusOr<CostProfile> stated = ProfileFromJson(fields.dump(), name);
    ASSERT_TRUE(stated.ok()) << stated.status();
    EXPECT_EQ(built_in->Fingerprint(), stated->Fingerprint()) << name;
  }
}

TEST(Profiles, SurviveJsonAndTheWire) {
  for (const CostProfile& profile : BuiltInProfiles()) {
    const absl::StatusOr<CostProfile> read = ProfileFromJson(ProfileToJson(profile), "other");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->Fingerprint(), profile.Fingerprint());
    EXPECT_EQ(read->name, profile.name);
    EXPECT_EQ(read->about, profile.about);
    v1::CostProfile message;
    ProfileToProto(profile, message);
    const absl::StatusOr<CostProfile> wired = ProfileFromProto(message);
    ASSERT_TRUE(wired.ok()) << wired.status();
    EXPECT_EQ(wired->Fingerprint(), profile.Fingerprint());
    EXPECT_EQ(wired->name, profile.name);
  }
}

TEST(Profiles, TellApartByEveryNumber) {
  const CostProfile base;
  CostProfile other = base;
  other.gamma_us = std::nextafter(base.gamma_us, 3.0);
  EXPECT_NE(base.Fingerprint(), other.Fingerprint());
  other = base;
  other.device.hop_us += 1e-9;
  EXPECT_NE(base.Fingerprint(), other.Fingerprint());
}

TEST(Profiles, RefuseAbsurdNumbersAndNameThem) {
  CostProfile p;
  EXPECT_TRUE(p.Validate().ok());
  p.busbw_scale = 0.0;
  EXPECT_THAT(p.Validate().message(), HasSubstr("busbw_scale"));
  p = CostProfile();
  p.gamma_us = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(p.Validate().message(), HasSubstr("gamma_us"));
  p = CostProfile();
  p.device.launch_us = -1.0;
  EXPECT_THAT(p.Validate().message(), HasSubstr("device.launch_us"));
  p = CostProfile();
  p.overlap_slowdown = std::numeric_limits<double>::infinity();
  EXPECT_THAT(p.Validate().message(), HasSubstr("overlap_slowdown"));
}

TEST(Profiles, TextsThatPicturesAndTablesCannotShowAreRefused) {
  CostProfile p;
  p.name = "h100 été";
  p.about = "two\n\tlines";
  EXPECT_TRUE(p.Validate().ok()) << p.Validate();
  p.about = "red \x1b[31m";
  EXPECT_EQ(
      p.Validate().message(),
      "cost profile: about: \"red \\x1b[31m\" is not UTF-8 without control characters (byte 4)");
  p.about = "";
  for (const char* name : {"\xff", "a\nb", "a\x01"}) {
    p.name = name;
    EXPECT_THAT(p.Validate().message(), HasSubstr("name: \""));
  }
  EXPECT_FALSE(ProfileFromJson(ProfileToJson(p), "file").ok());
}

TEST(Profiles, RefuseFilesThatSayMoreOrLess) {
  EXPECT_THAT(ProfileFromJson("{}", "p").status().message(), HasSubstr("compute_scale: missing"));
  std::string text = ProfileToJson(BuiltInProfiles()[0]);
  text.replace(text.find("gamma_us"), 8, "gama_us");
  EXPECT_THAT(ProfileFromJson(text, "p").status().message(),
              HasSubstr("unknown field \"gama_us\""));
  EXPECT_THAT(ProfileFromJson("nonsense", "p").status().message(), HasSubstr("not JSON"));
  const absl::Status unknown = FindProfile("h1000").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(unknown.message(), HasSubstr("small_batch"));
}

TEST(Costs, FollowTheFormulas) {
  const CapturedGraph captured = bucketd::testing::ReadTestGraph("llama3_debug_hsdp2x4_rsar.bw");
  const CostProfile profile = *FindProfile("slow_network");
  const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->profile_id(), "slow_network@1 over the file's costs");
  std::map<CollectiveKind, int> seen;
  for (size_t i = 0; i < captured.graph.collectives().size(); ++i) {
    const Collective& c = captured.graph.collectives()[i];
    const StatedCosts::Link& link = captured.costs.links[i];
    const double n = captured.graph.group(c).size;
    const double factor = (c.kind == CollectiveKind::kAllReduce ? 2.0 : 1.0) * (n - 1.0) / n;
    const double us =
        link.alpha_us * 5.0 + 3 * 20.0 + factor * 1e6 * 1e6 / (link.busbw_bytes_per_s * 0.03);
    EXPECT_NEAR(
        static_cast<double>(costs->CollectivePs(static_cast<CollectiveId>(i), 1'000'000, 4)),
        us * 1e6, 3.0);
    ++seen[c.kind];
  }
  EXPECT_GE(seen.size(), 3U);
  EXPECT_EQ(costs->CopyPs(2'680'000), 6'000'000);  // 2 us of traffic and a launch of 4
}

TEST(Costs, FasterWiresTakeLessForAByteAndNothingElse) {
  const CapturedGraph captured = bucketd::testing::ReadTestGraph("moe_debug_fsdp4_ep4.bw");
  const absl::StatusOr<Costs> costs =
      Costs::FromFile(captured.graph, captured.costs, *FindProfile("h100_launch"));
  ASSERT_TRUE(costs.ok()) << costs.status();
  const double factor = 0.5;
  const Costs fast = costs->WithWires(captured.graph, factor);
  const auto id = [](size_t i) { return static_cast<CollectiveId>(i); };
  for (size_t i = 0; i < captured.graph.collectives().size(); ++i) {
    const Collective& c = captured.graph.collectives()[i];
    for (const int64_t launches : {1, 5}) {
      const int64_t fixed = costs->CollectivePs(id(i), 0, launches);
      EXPECT_EQ(fast.CollectivePs(id(i), 0, launches), fixed);
      EXPECT_NEAR(
          static_cast<double>(fast.CollectivePs(id(i), c.bytes, launches) - fixed),
          factor * static_cast<double>(costs->CollectivePs(id(i), c.bytes, launches) - fixed), 2.0);
    }
    EXPECT_EQ(fast.node_ps(c.start), fast.CollectivePs(id(i), c.bytes, 1));
  }
  for (NodeId n = 0; n < captured.graph.size(); ++n) {
    if (captured.graph.kind(n) == NodeKind::kCollective) continue;
    EXPECT_EQ(fast.node_ps(n), costs->node_ps(n));
  }
  EXPECT_EQ(fast.CopyPs(1'000'000), costs->CopyPs(1'000'000));
  EXPECT_EQ(fast.host_ps_per_collective(), costs->host_ps_per_collective());
}

TEST(Costs, RefuseWhatNoGraphTakes) {
  const CapturedGraph captured = bucketd::testing::ReadTestGraph("llama3_debug_fsdp8.fw");
  StatedCosts stated = captured.costs;
  const NodeId last_call = captured.graph.output_node() - 1;
  double& us = stated.node_us[static_cast<size_t>(last_call)];
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(), 1e30}) {
    us = bad;
    const absl::Status status = Costs::FromFile(captured.graph, stated, CostProfile()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  const std::string too_long =
      std::string(Costs::FromFile(captured.graph, stated, CostProfile()).status().message());
  EXPECT_THAT(too_long, HasSubstr("most of it for " + captured.graph.Describe(last_call)));
  us = -1.0;
  EXPECT_THAT(Costs::FromFile(captured.graph, stated, CostProfile()).status().message(),
              HasSubstr(captured.graph.Describe(last_call)));
  us = 0.0;
  stated.node_us[0] = 1.0;
  EXPECT_THAT(Costs::FromFile(captured.graph, stated, CostProfile()).status().message(),
              HasSubstr("a placeholder runs nothing"));
  stated.node_us.pop_back();
  EXPECT_FALSE(Costs::FromFile(captured.graph, stated, CostProfile()).ok());
}

// No bytes at no speed take neither no time nor less.
TEST(Costs, NothingOverAWireOfNoSpeedIsRefused) {
  bucketd::testing::Net net(8);
  net.Out(net.Gather("a", net.Parameter("a", {0, 4})), SlotKind::kOutput);
  const Graph graph = net.Build();
  StatedCosts stated;
  stated.node_us.resize(static_cast<size_t>(graph.size()));
  stated.links = {{.alpha_us = 1.0, .busbw_bytes_per_s = 1e-320}};
  const absl::StatusOr<Costs> costs = Costs::FromFile(graph, stated, CostProfile());
  EXPECT_EQ(costs.status().code(), absl::StatusCode::kInvalidArgument) << costs.status();
  stated.links[0].busbw_bytes_per_s = 1e9;
  EXPECT_TRUE(Costs::FromFile(graph, stated, CostProfile()).ok());
}

TEST(Costs, AFileThatStatesNoLatencyHasNone) {
  const absl::StatusOr<CapturedGraph> captured = ReadCapturedGraph(R"({
    "kind": "fw", "world_size": 4, "groups": {"0": {"ranks": [0, 1, 2, 3], "mesh_dim": "dp"}},
    "nodes": [
    {"name": "p", "op": "placeholder", "inputs": [], "est_us": 0, "outputs": [{"shape": [8], "dtype": "bfloat16"}]},
    {"name": "g", "op": "_c10d_functional.all_gather_into_tensor.default", "inputs": [0], "est_us": 9,
     "outputs": [{"shape": [32], "dtype": "bfloat16"}], "coll": {"kind": "ag", "group": "0", "busbw": 1e9}},
    {"name": "w", "op": "_c10d_functional.wait_tensor.default", "inputs": [1], "wait_of": 1, "est_us": 0,
     "outputs": [{"shape": [32], "dtype": "bfloat16"}]},
    {"name": "output", "op": "output", "inputs": [2], "outputs": [], "est_us": 0}]})");
  ASSERT_TRUE(captured.ok()) << captured.status();
  const absl::Status status =
      Costs::FromFile(captured->graph, captured->costs, CostProfile()).status();
  EXPECT_THAT(status.message(), HasSubstr("(g): alpha_us is -1"));
}

TEST(DeviceModel, NamesTheMeshDimensionThatIsMissing) {
  const CapturedGraph captured = bucketd::testing::ReadTestGraph("llama3_debug_fsdp4_tp2.fw");
  Mesh mesh = captured.mesh;
  EXPECT_TRUE(Costs::FromDeviceModel(captured.graph, mesh, CostProfile()).ok());
  mesh.dims[0].size += 1;
  EXPECT_THAT(Costs::FromDeviceModel(captured.graph, mesh, CostProfile()).status().message(),
              HasSubstr(mesh.dims[0].name));
  mesh.dims.clear();
  EXPECT_THAT(Costs::FromDeviceModel(captured.graph, mesh, CostProfile()).status().message(),
              HasSubstr("has no dimension"));
}

// What the model makes of a graph is what its file states, within a thousandth: the files round to
// a ten-thousandth of a microsecond.
class DeviceModelTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceModelTest, GivesTheTimesThatTheFileStates) {
  const absl::StatusOr<CapturedGraph> captured = ReadCapturedGraphFile(GetParam());
  ASSERT_TRUE(captured.ok()) << captured.status();
  const Graph& graph = captured->graph;
  const absl::StatusOr<StatedCosts> model = ModelCosts(graph, captured->mesh, DeviceModel());
  ASSERT_TRUE(model.ok()) << model.status();
  for (size_t c = 0; c < model->links.size(); ++c) {
    const StatedCosts::Link& stated = captured->costs.links[c];
    EXPECT_NEAR(model->links[c].alpha_us, stated.alpha_us, 1e-6 * stated.alpha_us);
    EXPECT_NEAR(model->links[c].busbw_bytes_per_s, stated.busbw_bytes_per_s,
                1e-6 * stated.busbw_bytes_per_s);
  }
  std::map<std::string, int> differ;
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (graph.kind(n) == NodeKind::kCollective) continue;
    const double stated = captured->costs.node_us[static_cast<size_t>(n)];
    const double ours = model->node_us[static_cast<size_t>(n)];
    if (std::abs(ours - stated) > std::max(1e-3, 1e-3 * stated)) ++differ[std::string(graph.op(n))];
  }
  // The files charge nothing for copying a constant of one element to the device, nor for what is
  // wrapped in keeping a random op's state; the model charges a launch and the bytes that are read.
  differ.erase("aten.lift_fresh_copy.default");
  differ.erase("run_and_save_rng_state");
  differ.erase("run_with_rng_state");
  EXPECT_THAT(differ, ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(EveryGraph, DeviceModelTest,
                         ::testing::ValuesIn(bucketd::testing::TestDataFiles("graphs", ".json.gz")),
                         [](const auto& graph) {
                           std::string name = graph.param.substr(graph.param.rfind('/') + 1);
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace bucketd
