#include "passes/cost/measured_kernel.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "passes/base/digest.h"
#include "passes/base/index.h"
#include "passes/cost/costs.h"
#include "passes/cost/profile.h"

namespace bucketd {
namespace {

constexpr size_t kDigits = 32;
constexpr size_t kMaxOp = 256;
constexpr double kMaxUs = 1e8;
constexpr size_t kMaxParts = 256;              // of a kernel; what lies beyond is told by its type
constexpr size_t kMaxText = size_t{64} << 10;  // and beyond that nothing is told
// Of all kernels of a graph: captured steps have 35 bytes a node.
constexpr int64_t kFreeText = int64_t{64} << 20, kTextPerNode = 256;

bool IsKernel(const Graph& graph, NodeId n) {
  return graph.kind(n) == NodeKind::kCall && !graph.is_view(n) &&
         (graph.flops(n) > 0 || graph.memory_bytes(n) > 0);
}

// Writes down what a kernel computes.
class Writer {
 public:
  Writer(const Graph& graph, absl::Span<const NodeId> source) : graph_(graph), source_(source) {}

  std::string Run(NodeId n) && {
    absl::StrAppend(&text_, "kernel 1;", graph_.memory_bytes(n), ";");
    Node(n);
    return std::move(text_);
  }

 private:
  void Types(NodeId n) {
    for (const TensorType& type : graph_.outputs(n)) {
      absl::StrAppend(&text_, Name(type.dtype), "[", absl::StrJoin(graph_.shape(type), ","), "]");
    }
  }

  // REQUIRES: no more than kMaxParts deep.
  void Node(NodeId n) {
    const auto [at, is_new] = numbers_.emplace(n, numbers_.size());
    if (!is_new) {
      absl::StrAppend(&text_, "#", at->second);
      return;
    }
    absl::StrAppend(&text_, graph_.op(n), " ");
    Types(n);
    text_ += '(';
    for (const NodeId input : graph_.inputs(n)) {
      if (text_.size() > kMaxText) break;
      Input(input);
    }
    text_ += ')';
  }

  void Input(NodeId n) {
    const NodeId source = source_[Index(n)];
    Types(n);
    const bool part = graph_.kind(source) == NodeKind::kCall && !graph_.is_view(source) &&
                      !IsKernel(graph_, source);
    if (part && numbers_.size() < kMaxParts) {
      if (graph_.kind(n) == NodeKind::kGetitem) absl::StrAppend(&text_, graph_.getitem_index(n));
      text_ += '=';
      Node(source);
    }
    text_ += ',';
  }

  const Graph& graph_;
  const absl::Span<const NodeId> source_;
  std::string text_;
  absl::flat_hash_map<NodeId, size_t> numbers_;
};

bool IsSignature(absl::string_view text) {
  return text.size() == kDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

KernelSignatures::KernelSignatures(const Graph& graph)
    : graph_(graph), text_left_(kFreeText + kTextPerNode * graph.size()) {
  source_.reserve(Index(graph.size()));
  for (NodeId n = 0; n < graph.size(); ++n) {
    const bool shows = graph.kind(n) == NodeKind::kGetitem ||
                       (graph.kind(n) == NodeKind::kCall && graph.is_view(n));
    source_.push_back(shows && !graph.inputs(n).empty() ? source_[Index(graph.inputs(n)[0])] : n);
  }
}

std::string KernelSignatures::Of(NodeId n) {
  if (text_left_ < 0 || !IsKernel(graph_, n)) return "";
  const std::string text = Writer(graph_, source_).Run(n);
  text_left_ -= static_cast<int64_t>(text.size());
  return ToHex(Sha256(text)).substr(0, kDigits);
}

absl::Status ValidateKernels(absl::Span<const MeasuredKernel> kernels) {
  if (kernels.size() > kMaxMeasuredKernels) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernels: ", kernels.size(), " rows, expected at most ", kMaxMeasuredKernels));
  }
  for (size_t i = 0; i < kernels.size(); ++i) {
    const MeasuredKernel& row = kernels[i];
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("kernels: row ", i, ": ", what));
    };
    if (!IsSignature(row.signature)) {
      return wrong("signature: expected 32 hexadecimal digits in lower case");
    }
    const bool printable = std::all_of(row.op.begin(), row.op.end(), [](char c) {
      return absl::ascii_isgraph(static_cast<unsigned char>(c));
    });
    if (row.op.size() > kMaxOp || !printable) {
      return wrong(
          absl::StrCat("op: expected up to ", kMaxOp, " printable ASCII characters, no spaces"));
    }
    if (!std::isfinite(row.us) || row.us < 0.0 || row.us > kMaxUs) {
      return wrong(absl::StrFormat("us is %g, expected 0 to %g", row.us, kMaxUs));
    }
    if (row.samples < 0) return wrong("samples: expected no fewer than 0");
    if (i > 0 && kernels[i - 1].signature >= row.signature) {
      return wrong("expected ascending signatures, each once");
    }
  }
  return absl::OkStatus();
}

void UseMeasuredKernels(const Graph& graph, const CostProfile& profile, StatedCosts& stated) {
  if (profile.kernels.empty()) return;
  stated.measured_nodes.assign(stated.node_us.size(), false);
  KernelSignatures signatures(graph);
  for (NodeId n = 0; n < graph.size(); ++n) {
    const std::string signature = signatures.Of(n);
    if (signature.empty()) continue;
    const auto row = std::lower_bound(
        profile.kernels.begin(), profile.kernels.end(), signature,
        [](const MeasuredKernel& kernel, const std::string& s) { return kernel.signature < s; });
    if (row == profile.kernels.end() || row->signature != signature) continue;
    stated.node_us[Index(n)] = row->us;
    stated.measured_nodes[Index(n)] = true;
  }
}

}  // namespace bucketd
