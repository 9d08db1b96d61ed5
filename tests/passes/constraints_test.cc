// Constraints against what they are by definition, storage by storage, over graphs that are drawn.
#include "passes/pass/constraints.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/base/index.h"
#include "passes/plan/storage.h"
#include "passes/text/bir.h"

namespace bucketd {
namespace {

using Edges = std::vector<std::pair<NodeId, NodeId>>;

Graph Parse(const std::string& nodes) {
  auto parsed = ParseBir(absl::StrCat("graph @g forward mesh(dp=4) {\n", nodes, "}\n"));
  EXPECT_TRUE(parsed.ok()) << parsed.status() << "\n" << nodes;
  return std::move(parsed->graph);
}

Edges EdgesOf(const Graph& graph) {
  const absl::StatusOr<Constraints> found = FindConstraints(graph);
  EXPECT_TRUE(found.ok()) << found.status();
  Edges edges;
  for (const Constraints::Edge& edge : found->edges) edges.emplace_back(edge.before, edge.after);
  return edges;
}

// Whoever uses a storage stands behind its last writer, and whoever writes it behind all who used
// it since; a collective uses what it reads until its wait.
class ByDefinition {
 public:
  explicit ByDefinition(const Graph& graph)
      : graph_(graph), sets_(*StorageSets::Of(graph)), last_(Index(graph.size())) {
    for (NodeId n = 0; n < graph.size(); ++n) {
      Use(n, n);
      if (graph.kind(n) == NodeKind::kWait) {
        Use(graph.collective(graph.collective_of(n)).start, n, false);
      }
      Write(n);
    }
    std::sort(edges_.begin(), edges_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second, a.first) < std::pair(b.second, b.first);
    });
    edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
  }

  const Edges& edges() const { return edges_; }

 private:
  struct Last {
    NodeId writer = kNoNode;
    std::vector<NodeId> users;
  };

  bool IsWritten(NodeId storage) const {
    for (NodeId n = 0; n < graph_.size(); ++n) {
      for (const NodeId x : graph_.mutates(n)) {
        const absl::Span<const NodeId> of = sets_.of(x);
        if (std::find(of.begin(), of.end(), storage) != of.end()) return true;
      }
    }
    return false;
  }

  void Add(NodeId before, NodeId after) {
    if (before == after) return;
    NodeId until = before;
    if (graph_.kind(before) == NodeKind::kCollective) {
      const NodeId wait = graph_.collective(graph_.collective_of(before)).wait;
      if (wait != kNoNode) until = wait;
    }
    if (until != after) edges_.emplace_back(until < after ? until : before, after);
  }

  void Use(NodeId reads, NodeId as, bool is_behind_writers = true) {
    for (const NodeId x : graph_.inputs(reads)) {
      for (const NodeId storage : sets_.of(x)) {
        if (!IsWritten(storage)) continue;
        Last& last = last_[Index(storage)];
        if (is_behind_writers && last.writer != kNoNode) Add(last.writer, as);
        last.users.push_back(as);
      }
    }
  }

  void Write(NodeId n) {
    for (const NodeId x : graph_.mutates(n)) {
      for (const NodeId storage : sets_.of(x)) {
        Last& last = last_[Index(storage)];
        if (last.writer != kNoNode) Add(last.writer, n);
        for (const NodeId user : last.users) Add(user, n);
        last = {n, {}};
      }
    }
  }

  const Graph& graph_;
  const StorageSets sets_;
  std::vector<Last> last_;
  Edges edges_;
};

// Views of several nodes, ops that write in place, and collectives whose waits come later.
std::string Draw(std::mt19937& random, int nodes) {
  std::string text = "  %n0 = input : f32[4]\n  %n1 = input : f32[4]\n";
  std::vector<std::string> names = {"%n0", "%n1"}, under_way;
  const auto below = [&](size_t most) { return random() % most; };
  const auto any = [&] { return names[below(names.size())]; };
  for (int i = 2; i < nodes; ++i) {
    const std::string name = absl::StrCat("%n", i), x = any(), y = any();
    const std::string both = x == y ? x : absl::StrCat(x, ", ", y);
    switch (below(6)) {
      case 0:
        absl::StrAppend(&text, "  ", name, " = view(", both, ") view alias(", both, ") : f32[4]\n");
        break;
      case 1:
        absl::StrAppend(&text, "  ", name, " = add_(", both, ") mutates(", x, ") : f32[4]\n");
        break;
      case 2:
        absl::StrAppend(&text, "  %s", i, " = all_reduce(", x, ")\n");
        under_way.push_back(absl::StrCat("%s", i));
        continue;
      case 3:
        if (under_way.empty()) continue;
        absl::StrAppend(&text, "  ", name, " = wait(", under_way.back(), ")\n");
        under_way.pop_back();
        break;
      default:
        absl::StrAppend(&text, "  ", name, " = relu(", both, ") : f32[4]\n");
    }
    names.push_back(name);
  }
  for (const std::string& start : under_way) {
    absl::StrAppend(&text, "  %w", start.substr(1), " = wait(", start, ")\n");
  }
  return absl::StrCat(text, "  return ", names.back(), "\n");
}

TEST(Constraints, AreThoseOfEachStorageByItself) {
  size_t edges = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const std::string text = Draw(random, 6 + static_cast<int>(seed % 40));
    const Graph graph = Parse(text);
    const ByDefinition expected(graph);
    ASSERT_EQ(EdgesOf(graph), expected.edges()) << "seed " << seed << "\n" << text;
    edges += expected.edges().size();
  }
  EXPECT_GT(edges, 4'000U);
}

// 30,000 storages in one tuple that has 30,000 readers: their product would be 900 million.
TEST(Constraints, OfATupleOfThousandsOfTensorsCostNotTheirProductWithItsReaders) {
  constexpr int kMany = 30'000;
  std::string text = "  %x = input : f32[4]\n";
  std::vector<std::string> parts;
  for (int i = 0; i < kMany; ++i) {
    parts.push_back(absl::StrCat("%p", i));
    absl::StrAppend(&text, "  ", parts.back(), " = relu(%x) : f32[4]\n");
  }
  absl::StrAppend(&text, "  %all = bundle(%p0) alias(", absl::StrJoin(parts, ", "), ") : f32[4]\n");
  for (int i = 0; i < kMany; ++i) absl::StrAppend(&text, "  %r", i, " = sum(%all) : f32[1]\n");
  absl::StrAppend(&text, "  %w = add_(%all) mutates(%all) : f32[4]\n  return %w\n");
  const Graph graph = Parse(text);
  const Edges edges = EdgesOf(graph);
  EXPECT_EQ(edges.size(), kMany + 2U) << "readers before the writer, its maker, and the output";
}

}  // namespace
}  // namespace bucketd
