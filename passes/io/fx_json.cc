#include "passes/io/fx_json.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "passes/base/collectives.h"
#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"
#include "passes/io/fx_json_header.h"
#include "passes/io/fx_json_record.h"
#include "passes/io/gzip.h"
#include "passes/ir/ops.h"
#include "simdjson.h"

namespace bucketd {
namespace {

namespace od = simdjson::ondemand;
using fx_json::Header;
using fx_json::Record;

// What the words of a file mean.
template <typename Value>
using Word = std::pair<absl::string_view, Value>;

constexpr Word<DType> kDTypes[] = {
    {"bfloat16", DType::kBF16},     {"float32", DType::kF32},
    {"int64", DType::kI64},         {"bool", DType::kBool},
    {"uint8", DType::kU8},          {"int8", DType::kI8},
    {"int16", DType::kI16},         {"int32", DType::kI32},
    {"float16", DType::kF16},       {"float64", DType::kF64},
    {"uint16", DType::kU16},        {"uint32", DType::kU32},
    {"uint64", DType::kU64},        {"complex64", DType::kC64},
    {"complex128", DType::kC128},   {"float8_e4m3fn", DType::kF8E4M3},
    {"float8_e5m2", DType::kF8E5M2}};

constexpr auto kCollectives = [] {
  std::array<Word<CollectiveKind>, kCollectiveTraits.size() - 1> words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = {kCollectiveTraits[i + 1].short_name, kCollectiveTraits[i + 1].kind};
  }
  return words;
}();

constexpr Word<ReduceOp> kReduceOps[] = {
    {"", ReduceOp::kNone},     {"sum", ReduceOp::kSum}, {"avg", ReduceOp::kAvg},
    {"min", ReduceOp::kMin},   {"max", ReduceOp::kMax}, {"product", ReduceOp::kProduct},
    {"band", ReduceOp::kBand}, {"bor", ReduceOp::kBor}, {"bxor", ReduceOp::kBxor}};

constexpr Word<Tag> kTags[] = {{"", Tag::kNone},
                               {"fsdp_ag", Tag::kFsdpAllGather},
                               {"fsdp_rs", Tag::kFsdpReduceScatter},
                               {"ddp_ar", Tag::kDdpAllReduce},
                               {"hsdp_ar", Tag::kHsdpAllReduce}};

constexpr Word<Role> kRoles[] = {{"", Role::kNone},           {"mesh", Role::kNone},
                                 {"param", Role::kParameter}, {"input", Role::kInput},
                                 {"tangent", Role::kTangent}, {"saved", Role::kSaved},
                                 {"buffer", Role::kBuffer}};

constexpr Word<Direction> kDirections[] = {
    {"", Direction::kNone}, {"fw", Direction::kForward}, {"bw", Direction::kBackward}};

constexpr Word<SlotKind> kSlotKinds[] = {{"", SlotKind::kNone},
                                         {"output", SlotKind::kOutput},
                                         {"grad", SlotKind::kInputGradient},
                                         {"saved", SlotKind::kSaved}};

// Ops that are no calls.
constexpr Word<NodeKind> kKinds[] = {{"placeholder", NodeKind::kPlaceholder},
                                     {"get_attr", NodeKind::kGetAttr},
                                     {"getitem", NodeKind::kGetitem},
                                     {"output", NodeKind::kOutput}};

// Turns records into nodes.
class Importer {
 public:
  Importer(const Header& header, const GraphLimits& limits)
      : header_(header),
        roles_(header),
        builder_(absl::StrCat(header.name, header.name.empty() ? "" : ".", header.kind), limits) {}

  // Throws simdjson::simdjson_error; Place() then says where.
  absl::Status ReadNodes(od::array nodes) {
    for (od::value item : nodes) {
      const absl::Status status = reader_.Read(item.get_object(), record_);
      if (!status.ok()) return Error("field \"", reader_.field(), "\": ", status.message());
      RETURN_IF_ERROR(AddNode());
      ++next_;
    }
    return absl::OkStatus();
  }

  std::string Place() const {
    return absl::StrCat("node %", next_, ", field \"", absl::CHexEscape(reader_.field()), "\"");
  }

  absl::StatusOr<CapturedGraph> Finish() && {
    ASSIGN_OR_RETURN(Mesh mesh, roles_.MakeMesh());
    ASSIGN_OR_RETURN(Graph graph, std::move(builder_).Build());
    if (!has_costs_) costs_ = {};
    return CapturedGraph{std::move(graph), std::move(costs_), has_costs_,
                         std::move(mesh),  header_.kind,      std::move(measured_)};
  }

 private:
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    const std::string name =
        record_.name.empty()
            ? ""
            : absl::StrCat(" (", absl::CHexEscape(record_.name.substr(0, 80)), ")");
    return absl::InvalidArgumentError(absl::StrCat("node %", next_, name, ": ", parts...));
  }

  template <typename Words, typename Value>
  absl::Status Find(const Words& words, absl::string_view what, absl::string_view name,
                    Value& value) const {
    for (const auto& [word, meaning] : words) {
      if (word != name) continue;
      value = meaning;
      return absl::OkStatus();
    }
    std::vector<absl::string_view> known;
    for (const auto& [word, meaning] : words) {
      if (!word.empty()) known.push_back(word);
    }
    std::sort(known.begin(), known.end());
    return Error("unknown ", what, " \"", absl::CHexEscape(name.substr(0, 80)), "\"; known are ",
                 absl::StrJoin(known, ", "));
  }

  absl::Status AddNode() {
    const Record& r = record_;
    if (r.id >= 0 && r.id != next_) {
      return Error("its id is ", r.id, ", but ids are positions in the list");
    }
    spec_ = NodeSpec();
    spec_.name = r.name;
    spec_.op = r.op;
    spec_.module = r.module;
    spec_.inputs = r.inputs;
    spec_.alias_of = r.alias_of;
    spec_.mutates = r.mutates;
    spec_.flops = r.flops;
    facts_ = FactsOf(r.op);
    RETURN_IF_ERROR(SetKind());
    RETURN_IF_ERROR(SetOutputs());
    RETURN_IF_ERROR(SetFlagsAndDirection());
    if (spec_.kind == NodeKind::kPlaceholder) RETURN_IF_ERROR(SetPlaceholder());
    if (spec_.kind == NodeKind::kCollective) RETURN_IF_ERROR(SetCollective());
    if (spec_.kind == NodeKind::kOutput) RETURN_IF_ERROR(SetSlots());
    if (spec_.kind == NodeKind::kGetitem) {
      spec_.getitem_index = static_cast<int32_t>(
          std::clamp<int64_t>(r.index, -1, std::numeric_limits<int32_t>::max()));
    }
    spec_.memory_bytes = header_.stated ? r.memory_bytes : CountMemoryBytes();
    RETURN_IF_ERROR(builder_.Add(spec_).status());
    kinds_.push_back(spec_.kind);
    opaque_.push_back(spec_.kind == NodeKind::kPlaceholder && spec_.outputs.empty());
    has_costs_ = has_costs_ || r.has_est_us;
    costs_.node_us.push_back(r.est_us);
    measured_.push_back(r.measured && r.has_est_us);
    return absl::OkStatus();
  }

  // What an op's name tells, found out once an op.
  struct KnownOp {
    NodeKind kind = NodeKind::kCall;  // as far as the name tells
    bool is_wait = false, is_pointwise = false, is_ordered = false;
    Traffic traffic = Traffic::kAll;
  };

  KnownOp FactsOf(absl::string_view op) {
    const auto it = op_facts_.find(op);
    if (it != op_facts_.end()) return it->second;
    KnownOp facts{NodeKind::kCall, BaseName(op) == "wait_tensor", IsPointwiseOp(op),
                  IsOrderedOp(op), TrafficOf(op)};
    for (const auto& [name, kind] : kKinds) {
      if (op == name) facts.kind = kind;
    }
    return op_facts_.emplace(op, facts).first->second;
  }

  absl::Status SetKind() {
    const Record& r = record_;
    spec_.kind = facts_.kind;
    if (spec_.kind == NodeKind::kCall && r.has_coll) spec_.kind = NodeKind::kCollective;
    if (r.wait_of >= 0 && (spec_.kind != NodeKind::kCall || r.inputs.size() != 1)) {
      return Error("wait_of is ", r.wait_of, ", but this is a ", Name(spec_.kind), " with ",
                   r.inputs.size(), " inputs; expected a call with one");
    }
    const bool names_wait = facts_.is_wait || r.wait_of >= 0;
    if (spec_.kind != NodeKind::kCall || !names_wait || r.inputs.size() != 1) {
      return absl::OkStatus();
    }
    // What waits for something that is no collective here (a coalesced one) is an ordinary call.
    const auto start = static_cast<size_t>(r.inputs[0]);
    if (start < kinds_.size() && kinds_[start] == NodeKind::kCollective) {
      spec_.kind = NodeKind::kWait;
    }
    if (r.wait_of >= 0 && r.wait_of != r.inputs[0]) {
      return Error("wait_of is ", r.wait_of, ", but its input is ", r.inputs[0]);
    }
    return absl::OkStatus();
  }

  absl::Status SetOutputs() {
    const Record& r = record_;
    tensors_.clear();
    int64_t touched = 0;
    const bool opaque = spec_.kind == NodeKind::kPlaceholder && r.desc_kind == "mesh";
    for (const Record::Tensor& tensor : r.tensors) {
      if (opaque) break;
      NodeSpec::Tensor out;
      RETURN_IF_ERROR(Find(kDTypes, "dtype", absl::StripPrefix(tensor.dtype, "torch."), out.dtype));
      out.shape = absl::MakeConstSpan(r.dims).subspan(tensor.first_dim, tensor.rank);
      tensors_.push_back(out);
      touched = CappedSum(touched, CappedProduct(tensor.touched, ItemSize(out.dtype)));
    }
    spec_.outputs = tensors_;
    touched_.push_back(touched);
    return absl::OkStatus();
  }

  absl::Status SetFlagsAndDirection() {
    const Record& r = record_;
    const bool is_call = spec_.kind == NodeKind::kCall;
    const bool pointwise = is_call && (header_.stated ? r.pointwise : facts_.is_pointwise);
    const bool ordered = (is_call || spec_.kind == NodeKind::kCollective) && facts_.is_ordered;
    spec_.flags = static_cast<uint8_t>(
        (is_call && r.is_view ? kViewFlag : 0) | (is_call && r.is_compute ? kComputeFlag : 0) |
        (pointwise ? kPointwiseFlag : 0) | (ordered ? kOrderedFlag : 0) |
        (r.symbolic && !spec_.outputs.empty() ? kSymbolicFlag : 0));
    const absl::string_view direction = header_.kind == "joint" ? r.direction : header_.kind;
    return Find(kDirections, "direction", direction, spec_.direction);
  }

  absl::Status SetPlaceholder() {
    const Record& r = record_;
    RETURN_IF_ERROR(Find(kRoles, "desc_kind", r.desc_kind, spec_.role));
    if (r.desc_kind.empty() && r.is_param) spec_.role = Role::kParameter;
    // Mesh objects are named after the parameter that they come with.
    const bool is_state = spec_.role == Role::kParameter || spec_.role == Role::kBuffer;
    if (is_state || header_.stated) spec_.parameter = r.fqn;
    return absl::OkStatus();
  }

  absl::Status SetCollective() {
    const Record::Coll& coll = record_.coll;
    NodeSpec::CollectiveSpec& c = spec_.collective;
    RETURN_IF_ERROR(Find(kCollectives, "collective kind", coll.kind, c.kind));
    RETURN_IF_ERROR(Find(kReduceOps, "reduce op", coll.reduce_op, c.reduce_op));
    RETURN_IF_ERROR(Find(kTags, "tag", coll.tag, c.tag));
    // Without a tag it stays out of the graph: passes find parameters by structure.
    if (c.tag != Tag::kNone) c.parameter = coll.param;
    const absl::StatusOr<GroupId> used = roles_.Use(coll.group);
    if (!used.ok()) return Error(used.status().message());
    c.group = *used;
    const Group& role = roles_.role(c.group);
    if (coll.group_size >= 0 && coll.group_size != role.size) {
      return Error("group_size is ", coll.group_size, ", but group \"",
                   absl::CHexEscape(coll.group), "\" has ", role.size, " ranks");
    }
    if (Index(c.group) == builder_.graph().groups().size()) {
      const absl::Status added = builder_.AddGroup(role).status();
      if (!added.ok()) return Error(added.message());
    }
    costs_.links.push_back({coll.alpha_us, coll.busbw});
    return absl::OkStatus();
  }

  absl::Status SetSlots() {
    const Record& r = record_;
    slots_.clear();
    if (!r.has_slots) {  // then all that is known is what it reads
      for (NodeId node : r.inputs) slots_.push_back({node, SlotKind::kNone, ""});
    }
    for (const Record::Slot& slot : r.slots) {
      NodeSpec::Slot out;
      out.node = slot.node;
      // A mesh object among the outputs is named after the parameter whose gradient it goes with.
      const auto index = static_cast<size_t>(slot.node);
      const bool opaque = index < opaque_.size() && opaque_[index];
      if (slot.node != kNoNode && !opaque) {
        RETURN_IF_ERROR(Find(kSlotKinds, "slot kind", slot.kind, out.kind));
        const bool is_gradient = out.kind == SlotKind::kInputGradient;
        if (is_gradient && !slot.fqn.empty()) out.kind = SlotKind::kParameterGradient;
        if (is_gradient || header_.stated) out.parameter = slot.fqn;
      }
      slots_.push_back(out);
    }
    spec_.slots = slots_;
    return absl::OkStatus();
  }

  // proto/GRAPH.md §3.
  int64_t CountMemoryBytes() const {
    if (spec_.kind != NodeKind::kCall || (spec_.flags & kViewFlag) != 0) return 0;
    return MemoryBytes(facts_.traffic, touched_.back(), spec_.inputs.size(), [&](size_t i) {
      const auto input = static_cast<size_t>(spec_.inputs[i]);
      return input < kinds_.size() ? touched_[input] : 0;
    });
  }

  const Header& header_;
  fx_json::Roles roles_;
  GraphBuilder builder_;
  fx_json::RecordReader reader_;
  Record record_;
  NodeSpec spec_;
  KnownOp facts_;
  absl::flat_hash_map<std::string, KnownOp> op_facts_;
  std::vector<NodeSpec::Tensor> tensors_;
  std::vector<NodeSpec::Slot> slots_;
  int64_t next_ = 0;
  std::vector<NodeKind> kinds_;
  std::vector<bool> opaque_;
  std::vector<int64_t> touched_;  // by node: bytes of its outputs, repeated dimensions once
  StatedCosts costs_;
  std::vector<bool> measured_;  // one a node
  bool has_costs_ = false;
};

// `text` has SIMDJSON_PADDING bytes of room behind its end.
absl::StatusOr<CapturedGraph> Parse(const std::string& text, const GraphLimits& limits) {
  std::string place = "the beginning";
  const char* at = nullptr;
  od::parser parser;
  od::document document;
  bool began = false;  // a document that never began, as of an empty file, has no location
  try {
    document = parser.iterate(text.data(), text.size(), text.capacity() + 1);
    began = true;
    const Header header = fx_json::ReadHeader(document.get_object(), place);
    RETURN_IF_ERROR(header.Check());
    document.rewind();
    Importer importer(header, limits);
    try {
      RETURN_IF_ERROR(importer.ReadNodes(document["nodes"].get_array()));
    } catch (const simdjson::simdjson_error&) {
      place = importer.Place();
      throw;
    }
    return std::move(importer).Finish();
  } catch (const simdjson::simdjson_error& error) {
    if (began && document.current_location().get(at) != simdjson::SUCCESS) at = nullptr;
    const std::string where = at == nullptr ? "" : absl::StrCat(" near byte ", at - text.data());
    return absl::InvalidArgumentError(absl::StrCat("captured graph: ", place, where, ": ",
                                                   simdjson::error_message(error.error())));
  }
}

}  // namespace

absl::StatusOr<CapturedGraph> ReadCapturedGraph(absl::string_view bytes, const GraphLimits& limits,
                                                int64_t max_json_bytes) {
  ASSIGN_OR_RETURN(const std::string json,
                   UnpackBounded(bytes, max_json_bytes, simdjson::SIMDJSON_PADDING));
  return Parse(json, limits);
}

absl::StatusOr<CapturedGraph> ReadCapturedGraphFile(const std::string& path,
                                                    const GraphLimits& limits) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxJsonBytes));
  absl::StatusOr<CapturedGraph> graph = ReadCapturedGraph(bytes, limits);
  if (graph.ok()) return graph;
  return absl::Status(graph.status().code(), absl::StrCat(path, ": ", graph.status().message()));
}

}  // namespace bucketd
