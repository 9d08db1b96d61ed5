#include "passes/text/defaults.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

#include "passes/base/collectives.h"

namespace bucketd::text_internal {
namespace {

constexpr Keyword kPlain[] = {
    {"placeholder", NodeKind::kPlaceholder, Role::kNone, {}, "placeholder"},
    {"param", NodeKind::kPlaceholder, Role::kParameter, {}, "placeholder"},
    {"buffer", NodeKind::kPlaceholder, Role::kBuffer, {}, "placeholder"},
    {"input", NodeKind::kPlaceholder, Role::kInput, {}, "placeholder"},
    {"tangent", NodeKind::kPlaceholder, Role::kTangent, {}, "placeholder"},
    {"saved", NodeKind::kPlaceholder, Role::kSaved, {}, "placeholder"},
    {"get_attr", NodeKind::kGetAttr, {}, {}, "get_attr"},
    {"getitem", NodeKind::kGetitem, {}, {}, "getitem"},
    {"wait", NodeKind::kWait, {}, {}, "_c10d_functional.wait_tensor.default"},
    {"return", NodeKind::kOutput, {}, {}, "output"},
};

const std::vector<Keyword>& Keywords() {
  static const auto& kAll = *[] {
    auto* all = new std::vector<Keyword>(std::begin(kPlain), std::end(kPlain));
    for (const CollectiveTraits& of : AllCollectives()) {
      all->push_back({of.name, NodeKind::kCollective, {}, of.kind, of.op});
    }
    return all;
  }();
  return kAll;
}

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

}  // namespace

const Keyword* FindKeyword(absl::string_view word) {
  for (const Keyword& keyword : Keywords()) {
    if (keyword.word == word) return &keyword;
  }
  return nullptr;
}

const Keyword& KeywordOf(NodeKind kind, Role role, CollectiveKind collective) {
  const auto found =
      std::find_if(Keywords().begin(), Keywords().end(), [&](const Keyword& keyword) {
        return keyword.kind == kind && keyword.role == role && keyword.collective == collective;
      });
  return found == Keywords().end() ? Keywords().front() : *found;
}

absl::string_view ShortOp(absl::string_view op) {
  constexpr absl::string_view kFront = "aten.", kBack = ".default";
  if (op.size() <= kFront.size() + kBack.size() || !absl::StartsWith(op, kFront) ||
      !absl::EndsWith(op, kBack)) {
    return absl::string_view();
  }
  const absl::string_view name = op.substr(kFront.size(), op.size() - kFront.size() - kBack.size());
  const bool leads = absl::ascii_isalpha(static_cast<unsigned char>(name[0])) || name[0] == '_';
  const bool plain = leads && std::all_of(name.begin(), name.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
                     });
  return plain && FindKeyword(name) == nullptr ? name : absl::string_view();
}

OpFacts FactsOf(absl::string_view op) {
  OpFacts facts;
  facts.is_ordered = IsOrderedOp(op);
  facts.traffic = TrafficOf(op);
  facts.flags = static_cast<uint8_t>((IsComputeOp(op) ? kComputeFlag : 0) |
                                     (IsPointwiseOp(op) ? kPointwiseFlag : 0) |
                                     (facts.is_ordered ? kOrderedFlag : 0));
  return facts;
}

absl::Span<const NodeId> DefaultAlias(NodeKind kind, uint8_t flags, absl::Span<const NodeId> inputs,
                                      absl::Span<const NodeId> mutates) {
  if (!mutates.empty()) return mutates;
  const bool shares =
      (flags & kViewFlag) != 0 || kind == NodeKind::kWait || kind == NodeKind::kGetitem;
  return shares ? inputs.subspan(0, 1) : absl::Span<const NodeId>();
}

bool DefaultOutputs(const Graph& graph, const NodeSpec& spec, int32_t group_size,
                    std::vector<int64_t>& dims, std::vector<NodeSpec::Tensor>& outputs) {
  outputs.clear();
  const bool made_of_none = spec.kind == NodeKind::kOutput || spec.inputs.empty();
  if (made_of_none) return spec.kind == NodeKind::kOutput;
  absl::Span<const TensorType> made = graph.outputs(spec.inputs[0]);
  if (spec.kind == NodeKind::kGetitem && made.size() > 1) {
    const auto index = static_cast<size_t>(spec.getitem_index);
    if (index >= made.size()) return false;
    made = made.subspan(index, 1);
  }
  for (const TensorType& tensor : made) outputs.push_back({tensor.dtype, graph.shape(tensor)});
  const bool gathers = Gathers(spec.collective.kind);
  if (!gathers && !Scatters(spec.collective.kind)) return true;
  if (outputs.size() != 1 || outputs[0].shape.empty()) return false;
  dims.assign(outputs[0].shape.begin(), outputs[0].shape.end());
  if (gathers ? dims[0] > kMost / group_size : dims[0] % group_size != 0) return false;
  dims[0] = gathers ? dims[0] * group_size : dims[0] / group_size;
  outputs[0].shape = dims;
  return true;
}

int64_t CountedBytes(const Graph& graph, NodeKind kind, uint8_t flags, Traffic traffic,
                     absl::Span<const NodeId> inputs, absl::Span<const NodeSpec::Tensor> outputs) {
  if (kind != NodeKind::kCall || (flags & kViewFlag) != 0) return 0;
  int64_t written = 0;
  for (const NodeSpec::Tensor& tensor : outputs) {
    int64_t bytes = ItemSize(tensor.dtype);
    for (const int64_t dim : tensor.shape) bytes = CappedProduct(bytes, dim);
    written = CappedSum(written, bytes);
  }
  return MemoryBytes(traffic, written, inputs.size(),
                     [&](size_t i) { return OutputBytes(graph, inputs[i]); });
}

}  // namespace bucketd::text_internal
