// One line of a graph's text. Internal to passes/text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"
#include "passes/text/defaults.h"
#include "passes/text/link_text.h"
#include "passes/text/plan_text.h"
#include "passes/text/scanner.h"

namespace bucketd::text_internal {

struct GroupName {
  absl::string_view mesh_dim;
  int32_t lane = 0;
};

// What a line states that is no part of the graph.
struct LineCosts {
  LinkText link;
  double exposed_us = kNotStated, est_us = kNotStated;
  std::vector<NodeLabel> hidden_by;  // may name nodes that come later
  bool states_overlap() const { return !hidden_by.empty() || exposed_us >= 0 || est_us >= 0; }
};

struct NodeLine {
  NodeSpec spec;  // its views live until the next line
  bool by_position = false;
  LineCosts costs;
};

class NodeLineReader {
 public:
  explicit NodeLineReader(Scanner& scanner) : scan_(scanner) {}
  NodeLineReader(const NodeLineReader&) = delete;
  NodeLineReader& operator=(const NodeLineReader&) = delete;

  // dp or dp#1.
  absl::StatusOr<GroupName> ReadGroupName();
  void AddGroup(const GroupName& name, GroupId id) { groups_[{name.mesh_dim, name.lane}] = id; }

  // The node that follows those of `graph`, as far as a reader can tell whether it is right; the
  // rest is GraphBuilder's.
  absl::Status Read(const Graph& graph, const Names& names, Direction direction);
  const NodeLine& line() const { return line_; }

 private:
  struct Op {
    std::string name;
    OpFacts facts;
  };

  enum Attribute : uint32_t {
    kFlops = 1,
    kBytes = 1 << 1,
    kModule = 1 << 2,
    kOp = 1 << 3,
    kIndex = 1 << 4,
    kGroup = 1 << 5,
    kReduce = 1 << 6,
    kTag = 1 << 7,
    kParam = 1 << 8,
    kAlias = 1 << 9,
    kMutates = 1 << 10,
    kForward = 1 << 11,
    kBackward = 1 << 12,
    kUndirected = 1 << 13,
    kCost = 1 << 14,
    kAlpha = 1 << 15,
    kBusbw = 1 << 16,
    kHiddenBy = 1 << 17,
    kExposed = 1 << 18,
    kEst = 1 << 19,
    kTypes = 1 << 20,
  };

  void Clear();
  absl::Status ReadDefinition();
  absl::Status ReadHead();
  absl::Status ReadKeyword();
  absl::Status ReadOperands();
  absl::Status ReadSlots();
  absl::StatusOr<NodeSpec::Slot> ReadSlot();
  absl::Status ReadNodes(std::vector<NodeId>& nodes);
  absl::Status ReadAttributes();
  absl::Status ReadAttribute(absl::string_view word, size_t offset);
  absl::Status Once(uint32_t bit, absl::string_view word, size_t offset);
  absl::Status ReadText(Attribute attribute);
  absl::Status ReadNumber(Attribute attribute);
  absl::Status ReadCost(Attribute attribute);
  absl::Status ReadGroup(Attribute attribute);
  absl::Status ReadName(Attribute attribute);
  absl::Status ReadDirection(Attribute attribute);
  absl::Status ReadList(Attribute attribute);
  absl::Status ReadTypes();
  absl::Status ReadType();
  absl::Status Finish(size_t offset);
  void OwnShapes();
  void SetShapes();
  const Op& FindOp(absl::string_view written, bool is_quoted);

  Scanner& scan_;
  const Graph* graph_ = nullptr;
  const Names* names_ = nullptr;
  absl::flat_hash_map<std::string, std::unique_ptr<Op>> ops_;        // as they are
  absl::flat_hash_map<std::string, std::unique_ptr<Op>> short_ops_;  // by what stands for them
  absl::flat_hash_map<std::pair<absl::string_view, int32_t>, GroupId> groups_;

  NodeLine line_;
  const Keyword* keyword_ = nullptr;  // null: a call
  const Op* op_ = nullptr;
  uint32_t seen_ = 0;  // attributes
  uint8_t set_flags_ = 0, cleared_flags_ = 0;
  std::vector<NodeId> inputs_, alias_of_, mutates_;
  std::vector<int64_t> dims_;
  std::vector<std::pair<size_t, size_t>> shapes_;  // first dimension, rank
  std::vector<NodeSpec::Tensor> tensors_;
  std::vector<NodeSpec::Slot> slots_;
};

}  // namespace bucketd::text_internal
