// What torch 2.13's and AutoParallel's own passes made of the captured graphs (peers.json).
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/passes/greedy_test_util.h"

namespace bucketd::testing {
namespace {

using Counts = std::map<std::string, int>;

// A bucket counts once.
Counts CountCollectives(const Graph& graph, const Plan& plan) {
  Counts counts;
  for (const Step& step : plan.order) {
    if (step.kind == Step::Kind::kWait) continue;
    const NodeId node = step.kind == Step::Kind::kStart
                            ? plan.buckets[static_cast<size_t>(step.id)].members[0]
                            : step.id;
    if (graph.kind(node) != NodeKind::kCollective) continue;
    ++counts[std::string(ShortName(graph.collective(graph.collective_of(node)).kind))];
  }
  return counts;
}

nlohmann::json Peers() {
  const char* data = std::getenv("BUCKETD_TEST_DATA");
  const std::filesystem::path folder = data != nullptr ? data : "tests/data";
  std::ifstream file(folder / "graphs" / "peers.json");
  return nlohmann::json::parse(file);
}

struct Peer {
  const char* name;
  const char* pass;
  std::vector<int64_t> caps;
  int32_t span;
};

TEST(Peers, T2_15_UpstreamMergesAsManyAsTheOriginals) {
  const Peer all[] = {{"fsdp_prebucket_autocap", "pre-bucket", {}, kNoLimit},
                      {"fsdp_greedy_2000mb", "greedy-bucket", {2000 * kMiB}, kNoLimit},
                      {"ap_greedy_2000mb_span1500", "greedy-bucket", {2000 * kMiB}, 1500}};
  std::map<std::string, int> compared;
  const nlohmann::json peers = Peers();
  for (const auto& [name, graph_peers] : peers.items()) {
    const nlohmann::json& passes = graph_peers["profiles"]["h100_nvlink"]["passes"];
    const CapturedGraph captured = Captured(name);
    const absl::StatusOr<Costs> costs =
        Costs::FromFile(captured.graph, captured.costs, CostProfile());
    ASSERT_TRUE(costs.ok()) << costs.status();
    for (const Peer& peer : all) {
      if (!passes.contains(peer.name)) continue;
      PlanOptions options = GreedyOptions(peer.caps, peer.span);
      options.upstream = true;
      const absl::StatusOr<Plan> plan = TryPass(peer.pass, captured.graph, *costs, options);
      ASSERT_TRUE(plan.ok()) << name << ": " << plan.status();
      Counts expected = passes[peer.name]["collectives"].get<Counts>();
      // AutoParallel looks at scatters after it has merged gathers, in a graph that is not sorted
      // again, so that its distances depend on how many nodes a merge wrote. By positions at entry
      // the scatters all stand within the span.
      if (name == "llama3_debug_fsdp8.bw" && peer.span == 1500) {
        ASSERT_EQ(expected["rs"], 2);
        expected["rs"] = 1;
      }
      EXPECT_EQ(CountCollectives(captured.graph, *plan), expected) << name << " " << peer.name;
      ++compared[peer.name];
    }
  }
  EXPECT_EQ(compared["fsdp_prebucket_autocap"], 13);
  EXPECT_EQ(compared["fsdp_greedy_2000mb"], 11);
  EXPECT_EQ(compared["ap_greedy_2000mb_span1500"], 11);
}

}  // namespace
}  // namespace bucketd::testing
