#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/ir/text.h"
#include "passes/text/bir.h"
#include "passes/text/defaults.h"
#include "passes/text/link_text.h"
#include "passes/text/node_line.h"
#include "passes/text/plan_text.h"
#include "passes/text/scanner.h"

namespace bucketd {
namespace text_internal {
namespace {

// Longest time that an overlap may state: no sum of such leaves an int64.
constexpr double kMaxOverlapUs = 1e11;

class GraphParser {
 public:
  GraphParser(absl::string_view text, const BirLimits& limits)
      : scan_(text), limits_(limits), lines_(scan_) {}

  absl::StatusOr<ParsedBir> Run() && {
    scan_.SkipLines();
    if (!scan_.AcceptWord("graph")) return scan_.Expected("graph");
    RETURN_IF_ERROR(ReadHeader());
    for (scan_.SkipLines(); !scan_.Accept('}'); scan_.SkipLines()) RETURN_IF_ERROR(ReadNode());
    const size_t end = scan_.offset();
    absl::StatusOr<Graph> graph = std::move(*builder_).Build();
    if (!graph.ok()) return scan_.ErrorAt(end, graph.status().message());
    ParsedBir parsed{*std::move(graph), {}, has_costs_, std::move(mesh_), {}, std::nullopt};
    RETURN_IF_ERROR(ResolveCosts(parsed));
    RETURN_IF_ERROR(ResolveOverlap(parsed));
    scan_.SkipLines();
    if (scan_.AcceptWord("plan")) {
      ASSIGN_OR_RETURN(parsed.plan, ScanPlan(scan_, parsed.graph, names_));
      scan_.SkipLines();
    }
    if (!scan_.AtEnd()) return scan_.Expected("the end of the text");
    return parsed;
  }

 private:
  absl::Status ReadHeader() {
    absl::string_view name;
    if (scan_.Accept('@')) {
      ASSIGN_OR_RETURN(name, scan_.Text("the graph's name"));
    }
    builder_.emplace(std::string(name), limits_.graph);
    while (!scan_.Accept('{')) {
      if (scan_.AcceptWord("forward")) {
        direction_ = Direction::kForward;
      } else if (scan_.AcceptWord("backward")) {
        direction_ = Direction::kBackward;
      } else if (scan_.AcceptWord("costs")) {
        has_costs_ = true;
      } else if (scan_.AcceptWord("mesh")) {
        RETURN_IF_ERROR(ReadMesh());
      } else {
        return scan_.Expected("forward, backward, costs, mesh(...) or \"{\"");
      }
    }
    return scan_.ExpectLineEnd();
  }

  absl::Status ReadMesh() {
    RETURN_IF_ERROR(scan_.Expect('('));
    do {
      scan_.SkipLines();
      RETURN_IF_ERROR(ReadGroup());
      scan_.SkipLines();
    } while (scan_.Accept(','));
    return scan_.Expect(')');
  }

  absl::Status ReadGroup() {
    const size_t offset = scan_.Here();
    ASSIGN_OR_RETURN(const GroupName name, lines_.ReadGroupName());
    RETURN_IF_ERROR(scan_.Expect('='));
    ASSIGN_OR_RETURN(const int64_t size, scan_.Integer("the number of ranks", INT32_MAX));
    MeshDim dim{std::string(name.mesh_dim), static_cast<int32_t>(size), 0, ""};
    LinkText link;
    while (scan_.Peek() != ',' && scan_.Peek() != ')' && scan_.Peek() != '\n') {
      RETURN_IF_ERROR(ReadGroupAttribute(dim, link));
    }
    has_costs_ = has_costs_ || link.states_any();
    const auto group = builder_->AddGroup({dim.name, name.lane, dim.size});
    if (!group.ok()) return scan_.ErrorAt(offset, group.status().message());
    lines_.AddGroup(name, *group);
    group_links_.push_back(link);
    if (dim_names_.insert(dim.name).second) mesh_.dims.push_back(std::move(dim));
    return absl::OkStatus();
  }

  absl::Status ReadGroupAttribute(MeshDim& dim, LinkText& link) {
    const size_t offset = scan_.offset();
    const absl::string_view word = scan_.Word();
    if (word == "alpha") {
      RETURN_IF_ERROR(scan_.Expect('='));
      ASSIGN_OR_RETURN(link.alpha_us, scan_.Microseconds(word));
    } else if (word == "busbw") {
      RETURN_IF_ERROR(scan_.Expect('='));
      ASSIGN_OR_RETURN(link.busbw_bytes_per_s, scan_.BytesPerSecond(word));
    } else if (word == "per_node") {
      RETURN_IF_ERROR(scan_.Expect('='));
      ASSIGN_OR_RETURN(const int64_t ranks, scan_.Integer(word, INT32_MAX));
      dim.ranks_per_node = static_cast<int32_t>(ranks);
    } else if (word == "link") {
      RETURN_IF_ERROR(scan_.Expect('='));
      ASSIGN_OR_RETURN(const absl::string_view name, scan_.Text("the link's class"));
      if (FindUnprintable(name) != absl::string_view::npos) {
        return scan_.ErrorAt(offset, "the link's class is not UTF-8 without control characters");
      }
      dim.link_class = std::string(name);
    } else {
      return scan_.ErrorAt(offset, "expected alpha=, busbw=, per_node=, link=, \",\" or \")\"");
    }
    return absl::OkStatus();
  }

  absl::Status ReadNode() {
    const size_t offset = scan_.Here();
    const Graph& graph = builder_->graph();
    RETURN_IF_ERROR(lines_.Read(graph, names_, direction_));
    const NodeLine& line = lines_.line();
    const absl::StatusOr<NodeId> id = builder_->Add(line.spec);
    if (!id.ok()) return scan_.ErrorAt(offset, id.status().message());
    if (!line.spec.name.empty() && !line.by_position) {
      const auto [it, inserted] = names_.emplace(line.spec.name, *id);
      if (!inserted) {
        return scan_.ErrorAt(offset, absl::StrCat("%", Printable(line.spec.name), " is node ",
                                                  it->second, " already"));
      }
    }
    has_costs_ = has_costs_ || line.costs.link.states_any();
    const bool starts = line.spec.kind == NodeKind::kCollective;
    node_us_.push_back(starts ? 0.0 : std::max(line.costs.link.cost_us, 0.0));
    if (starts) stated_.push_back({offset, line.costs});
    return absl::OkStatus();
  }

  absl::Status ResolveCosts(ParsedBir& parsed) {
    if (!has_costs_) return absl::OkStatus();
    const Graph& graph = parsed.graph;
    parsed.costs.node_us = std::move(node_us_);
    for (size_t i = 0; i < stated_.size(); ++i) {
      const Collective& c = graph.collectives()[i];
      const auto link =
          ResolveLink(stated_[i].costs.link, group_links_[static_cast<size_t>(c.group)], c,
                      graph.group(c).size);
      if (!link.ok()) return scan_.ErrorAt(stated_[i].offset, link.status().message());
      parsed.costs.links.push_back(*link);
    }
    return absl::OkStatus();
  }

  absl::Status ResolveOverlap(ParsedBir& parsed) {
    const auto ps = [](double us) {
      return us < 0 ? int64_t{-1} : static_cast<int64_t>(std::nearbyint(us * 1e6));
    };
    for (size_t i = 0; i < stated_.size(); ++i) {
      const LineCosts& costs = stated_[i].costs;
      if (std::max(costs.exposed_us, costs.est_us) > kMaxOverlapUs) {
        return scan_.ErrorAt(
            stated_[i].offset,
            absl::StrCat("expected exposed= and est= of at most ", TimeText(kMaxOverlapUs)));
      }
      if (!costs.states_overlap()) continue;
      BirOverlap& overlap = parsed.overlap.emplace_back();
      overlap.collective = static_cast<CollectiveId>(i);
      overlap.exposed_ps = ps(costs.exposed_us);
      overlap.est_ps = ps(costs.est_us);
      for (const NodeLabel& label : costs.hidden_by) {
        ASSIGN_OR_RETURN(const NodeId n, Resolve(scan_, label, names_, parsed.graph.size()));
        overlap.hidden_by.push_back(n);
      }
    }
    return absl::OkStatus();
  }

  struct Stated {
    size_t offset = 0;
    LineCosts costs;
  };

  Scanner scan_;
  const BirLimits& limits_;
  NodeLineReader lines_;
  std::optional<GraphBuilder> builder_;
  Names names_;
  Mesh mesh_;
  absl::flat_hash_set<std::string> dim_names_;
  Direction direction_ = Direction::kNone;
  bool has_costs_ = false;
  std::vector<LinkText> group_links_;
  std::vector<Stated> stated_;  // one a collective
  std::vector<double> node_us_;
};

}  // namespace
}  // namespace text_internal

absl::StatusOr<ParsedBir> ParseBir(absl::string_view text, const BirLimits& limits) {
  RETURN_IF_ERROR(
      text_internal::Scanner::CheckBounds(text, limits.max_bytes, limits.max_line_bytes));
  return text_internal::GraphParser(text, limits).Run();
}

}  // namespace bucketd
