// Plans as text, and how nodes are called in it. Internal to passes/text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/text/scanner.h"

namespace bucketd::text_internal {

using Names = absl::flat_hash_map<absl::string_view, NodeId>;

// The node of 0 .. size - 1 that a label means.
absl::StatusOr<NodeId> Resolve(const Scanner& scanner, const NodeLabel& label, const Names& names,
                               int64_t size);

// Behind the word "plan". `names` are those of the whole graph.
absl::StatusOr<Plan> ScanPlan(Scanner& scanner, const Graph& graph, const Names& names);

inline constexpr size_t kListIndent = 6;  // of the lines that a list goes on in

// Writes lines that break between the items of a list.
class Writer {
 public:
  void Text(absl::string_view text) { out_.append(text.data(), text.size()); }
  // An item of a list, behind `separator`; in a new line of `indent` spaces where it is too long.
  void Item(absl::string_view separator, absl::string_view item, size_t indent);
  void EndLine();
  std::string Take() && { return std::move(out_); }

 private:
  std::string out_;
  size_t line_begin_ = 0;
};

std::string InQuotes(absl::string_view text);
// A text as a word, or in quotes where it is none.
std::string Quoted(absl::string_view text);
// The same for texts where digits may lead.
std::string QuotedText(absl::string_view text);

// How the nodes of a graph are called: by name where that is one node's alone, else by position.
class NodeNames {
 public:
  explicit NodeNames(const Graph& graph);
  std::string Of(NodeId n) const;          // "%mm_1" or "%12"
  std::string Definition(NodeId n) const;  // "%mm_1", "%12" or "%12(mm)"

 private:
  bool IsOwn(NodeId n) const;

  const Graph& graph_;
  absl::flat_hash_map<absl::string_view, int32_t> count_;
};

void WritePlan(const Graph& graph, const NodeNames& names, const Plan& plan, Writer& writer);

}  // namespace bucketd::text_internal
