#include "passes/ir/canonical.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace bucketd {
namespace {

// proto/GRAPH.md §4, item by item. Writes into one growing buffer whose spare room is checked once
// a node part instead of once a byte.
class Encoder {
 public:
  explicit Encoder(const Graph& graph) : graph_(graph), numbers_(graph.strings().size(), -1) {
    out_.resize(static_cast<size_t>(graph.size()) * 24 + 4096);
  }

  std::string Run() && {
    Text("BKTG");
    U8(1);
    Varint(graph_.groups().size());
    for (const Group& group : graph_.groups()) {
      GroupName(group.mesh_dim);
      Signed(group.lane);
      Signed(group.size);
    }
    Signed(graph_.size());
    for (NodeId n = 0; n < graph_.size(); ++n) Node(n);
    out_.resize(used_);
    return std::move(out_);
  }

 private:
  static constexpr size_t kMaxVarint = 10;

  void Room(size_t bytes) {
    if (out_.size() - used_ < bytes) out_.resize(2 * out_.size() + bytes);
  }
  void U8(uint8_t value) {
    Room(1);
    out_[used_++] = static_cast<char>(value);
  }
  template <typename Enum>
  void Enumerator(Enum value) {
    U8(static_cast<uint8_t>(value));
  }
  void Varint(uint64_t value) {
    Room(kMaxVarint);
    char* to = out_.data() + used_;
    while (value >= 0x80) {
      *to++ = static_cast<char>(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    *to++ = static_cast<char>(static_cast<uint8_t>(value));
    used_ = static_cast<size_t>(to - out_.data());
  }
  // A number that the builder found to be not negative.
  void Signed(int64_t value) { Varint(static_cast<uint64_t>(value)); }
  void Text(absl::string_view text) {
    Room(text.size());
    text.copy(out_.data() + used_, text.size());
    used_ += text.size();
  }
  void NewString(absl::string_view text) {
    Varint(0);
    Varint(text.size());
    Text(text);
    ++seen_;
  }
  void String(StringId id, absl::string_view text) {
    int64_t& number = numbers_[static_cast<size_t>(id)];
    if (number < 0) {
      const auto group_name = group_names_.find(text);
      number = group_name == group_names_.end() ? seen_ : group_name->second;
      if (number == seen_) return NewString(text);
    }
    Signed(1 + number);
  }
  // Group names are not in the graph's string table, but share numbers with the strings that are.
  void GroupName(absl::string_view name) {
    const auto [it, inserted] = group_names_.emplace(name, seen_);
    if (!inserted) return Signed(1 + it->second);
    NewString(name);
  }
  void Edges(NodeId n, absl::Span<const NodeId> ids) {
    Varint(ids.size());
    for (NodeId id : ids) Signed(n - id);
  }

  void Node(NodeId n) {
    const Graph& g = graph_;
    const NodeKind kind = g.kind(n);
    Enumerator(kind);
    String(g.op_id(n), g.op(n));
    Edges(n, g.inputs(n));
    Varint(g.outputs(n).size());
    for (const TensorType& tensor : g.outputs(n)) {
      Enumerator(tensor.dtype);
      Signed(tensor.rank);
      for (int64_t dim : g.shape(tensor)) Signed(dim);
    }
    Edges(n, g.alias_of(n));
    Edges(n, g.mutates(n));
    Varint(g.flags(n));
    Signed(g.flops(n));
    Signed(g.memory_bytes(n));
    Enumerator(g.direction(n));
    String(g.module_id(n), g.module(n));
    switch (kind) {
      case NodeKind::kPlaceholder:
        Enumerator(g.role(n));
        return String(g.parameter_id(n), g.parameter(n));
      case NodeKind::kGetitem:
        return Signed(g.getitem_index(n));
      case NodeKind::kCollective:
        return CollectiveOf(g.collective(g.collective_of(n)));
      case NodeKind::kOutput:
        return Slots();
      default:
        return;
    }
  }
  void CollectiveOf(const Collective& c) {
    Enumerator(c.kind);
    Signed(c.group);
    Enumerator(c.reduce_op);
    Enumerator(c.tag);
    String(c.parameter, graph_.string(c.parameter));
  }
  void Slots() {
    Varint(graph_.output_slots().size());
    for (const OutputSlot& slot : graph_.output_slots()) {
      Signed(slot.node == kNoNode ? 0 : 1 + slot.node);
      Enumerator(slot.kind);
      String(slot.parameter, graph_.string(slot.parameter));
    }
  }

  const Graph& graph_;
  std::string out_;
  size_t used_ = 0;
  std::vector<int64_t> numbers_;  // by StringId; -1: not seen yet
  absl::flat_hash_map<absl::string_view, int64_t> group_names_;
  int64_t seen_ = 0;
};

}  // namespace

std::string CanonicalEncoding(const Graph& graph) { return Encoder(graph).Run(); }

Digest GraphDigest(const Graph& graph) { return Sha256(CanonicalEncoding(graph)); }

}  // namespace bucketd
