#include "passes/text/plan_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/ir/text.h"
#include "passes/text/bir.h"
#include "passes/text/defaults.h"

namespace bucketd {
namespace text_internal {
namespace {

constexpr size_t kColumns = 100;

bool IsInput(const Graph& graph, NodeId n) {
  return graph.kind(n) == NodeKind::kPlaceholder || graph.kind(n) == NodeKind::kGetAttr;
}

std::vector<NodeId> InputsOf(const Graph& graph) {
  std::vector<NodeId> inputs;
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (IsInput(graph, n)) inputs.push_back(n);
  }
  return inputs;
}

class PlanScanner {
 public:
  PlanScanner(Scanner& scanner, const Graph& graph, const Names& names)
      : scan_(scanner), graph_(graph), names_(names) {}

  absl::StatusOr<Plan> Run() && {
    RETURN_IF_ERROR(scan_.Expect('{'));
    plan_.node_count = graph_.size();
    bool has_order = false;
    for (scan_.SkipLines(); !scan_.Accept('}'); scan_.SkipLines()) {
      if (!has_order && scan_.AcceptWord("bucket")) {
        RETURN_IF_ERROR(ScanBucket());
      } else if (!has_order && scan_.AcceptWord("order")) {
        RETURN_IF_ERROR(ScanOrder());
        has_order = true;
      } else {
        return scan_.Expected(has_order ? "\"}\"" : "bucket or order");
      }
    }
    if (!has_order) return scan_.ErrorAt(scan_.offset() - 1, "expected an order before this \"}\"");
    return std::move(plan_);
  }

 private:
  absl::StatusOr<BucketId> ScanBucketName(int64_t most) {
    const size_t offset = scan_.offset();
    const absl::string_view word = scan_.Word();
    int64_t k = 0;
    bool is_name = word.size() > 1 && word.size() < 12 && word[0] == 'b' &&
                   (word.size() == 2 || word[1] != '0');
    for (const char c : word.substr(std::min<size_t>(1, word.size()))) {
      is_name = is_name && c >= '0' && c <= '9';
      if (is_name) k = 10 * k + (c - '0');
    }
    if (is_name && k <= most) return static_cast<BucketId>(k);
    return scan_.ErrorAt(offset, most < 0 ? absl::StrCat("this plan has no buckets")
                                          : absl::StrCat("expected a bucket, b0 to b", most));
  }

  absl::Status ScanBucket() {
    const size_t offset = scan_.Here();
    const auto next = static_cast<BucketId>(plan_.buckets.size());
    ASSIGN_OR_RETURN(const BucketId k, ScanBucketName(next));
    if (k != next) {
      return scan_.ErrorAt(offset, absl::StrCat("expected b", next, ": buckets are numbered"));
    }
    RETURN_IF_ERROR(scan_.Expect('='));
    Bucket bucket;
    const size_t kind_offset = scan_.Here();
    const absl::string_view kind = scan_.Word();
    RETURN_IF_ERROR(ScanMembers(bucket));
    if (!kind.empty() && !bucket.members.empty()) {
      const NodeId first = bucket.members.front();
      const CollectiveKind is = graph_.collective(graph_.collective_of(first)).kind;
      if (Name(is) != kind) {
        return scan_.ErrorAt(kind_offset, absl::StrCat("expected ", Name(is), ", the kind of ",
                                                       graph_.Describe(first)));
      }
    }
    RETURN_IF_ERROR(ScanBucketAttributes(bucket));
    LayOut(graph_, bucket);
    plan_.buckets.push_back(std::move(bucket));
    return scan_.ExpectLineEnd();
  }

  absl::Status ScanMembers(Bucket& bucket) {
    return scan_.Labels('{', '}', [&](const NodeLabel& label) -> absl::Status {
      ASSIGN_OR_RETURN(const NodeId member, Resolve(scan_, label, names_, graph_.size()));
      if (graph_.kind(member) != NodeKind::kCollective) {
        return scan_.ErrorAt(
            label.offset, absl::StrCat(graph_.Describe(member), " is a ", Name(graph_.kind(member)),
                                       ", expected a collective"));
      }
      bucket.members.push_back(member);
      return absl::OkStatus();
    });
  }

  absl::Status ScanBucketAttributes(Bucket& bucket) {
    while (!scan_.AtLineEnd()) {
      if (scan_.AcceptWord("grouped")) {
        bucket.mode = BucketMode::kGrouped;
      } else if (scan_.AcceptWord("copies_on_comm")) {
        bucket.copies = CopyStream::kComm;
      } else if (scan_.AcceptWord("name")) {
        RETURN_IF_ERROR(scan_.Expect('='));
        const size_t offset = scan_.offset();
        ASSIGN_OR_RETURN(const absl::string_view name, scan_.Text("the bucket's name"));
        if (FindUnprintable(name) != absl::string_view::npos) {
          return scan_.ErrorAt(offset, "the bucket's name is not UTF-8 without control characters");
        }
        bucket.name = std::string(name);
      } else {
        return scan_.Expected("grouped, copies_on_comm or name=");
      }
    }
    return absl::OkStatus();
  }

  absl::Status ScanOrder() {
    RETURN_IF_ERROR(scan_.Expect('{'));
    bool names_input = false, names_output = false;
    for (scan_.SkipLines(); !scan_.Accept('}'); scan_.SkipLines()) {
      Step step;
      if (scan_.Peek() == '%') {
        ASSIGN_OR_RETURN(const NodeLabel label, scan_.Label());
        ASSIGN_OR_RETURN(step.id, Resolve(scan_, label, names_, graph_.size()));
        names_input = names_input || IsInput(graph_, step.id);
        names_output = names_output || step.id == graph_.output_node();
      } else {
        const bool starts = scan_.AcceptWord("start");
        if (!starts && !scan_.AcceptWord("wait")) {
          return scan_.Expected("%node, start:b<number>, wait:b<number> or \"}\"");
        }
        step.kind = starts ? Step::Kind::kStart : Step::Kind::kWait;
        RETURN_IF_ERROR(scan_.Expect(':'));
        const auto most = static_cast<int64_t>(plan_.buckets.size()) - 1;
        ASSIGN_OR_RETURN(step.id, ScanBucketName(most));
      }
      plan_.order.push_back(step);
    }
    if (!names_input) {
      std::vector<Step> inputs;
      for (const NodeId n : InputsOf(graph_)) inputs.push_back({Step::Kind::kNode, n});
      plan_.order.insert(plan_.order.begin(), inputs.begin(), inputs.end());
    }
    if (!names_output) plan_.order.push_back({Step::Kind::kNode, graph_.output_node()});
    return scan_.ExpectLineEnd();
  }

  Scanner& scan_;
  const Graph& graph_;
  const Names& names_;
  Plan plan_;
};

std::string StepText(const NodeNames& names, const Step& step) {
  if (step.kind == Step::Kind::kNode) return names.Of(step.id);
  return absl::StrCat(step.kind == Step::Kind::kStart ? "start:b" : "wait:b", step.id);
}

// What of the order is written: the first and one past the last step.
std::pair<size_t, size_t> WrittenSteps(const Graph& graph, const std::vector<Step>& order) {
  const std::vector<NodeId> inputs = InputsOf(graph);
  const bool lead =
      order.size() >= inputs.size() &&
      std::equal(inputs.begin(), inputs.end(), order.begin(), [](NodeId n, const Step& step) {
        return step == Step{Step::Kind::kNode, n};
      });
  const Step output{Step::Kind::kNode, graph.output_node()};
  const size_t from = lead ? inputs.size() : 0;
  const bool ends = order.size() > from && order.back() == output &&
                    std::count(order.begin(), order.end(), output) == 1;
  // An input that stands again would bring all of them back.
  const bool again = std::any_of(order.begin() + static_cast<std::ptrdiff_t>(from), order.end(),
                                 [&](const Step& step) {
                                   return step.kind == Step::Kind::kNode && step.id >= 0 &&
                                          step.id < graph.size() && IsInput(graph, step.id);
                                 });
  return {again ? 0 : from, order.size() - (ends ? 1 : 0)};
}

}  // namespace

absl::StatusOr<NodeId> Resolve(const Scanner& scanner, const NodeLabel& label, const Names& names,
                               int64_t size) {
  if (label.position >= 0) {
    if (label.position < size) return static_cast<NodeId>(label.position);
    return scanner.ErrorAt(label.offset,
                           absl::StrCat("expected an earlier node, but there are ", size,
                                        " up to here and %", label.position, " is none of them"));
  }
  const auto it = names.find(label.name);
  if (it != names.end()) return it->second;
  return scanner.ErrorAt(
      label.offset,
      absl::StrCat("expected an earlier node, but none is called %", Printable(label.name)));
}

absl::StatusOr<Plan> ScanPlan(Scanner& scanner, const Graph& graph, const Names& names) {
  return PlanScanner(scanner, graph, names).Run();
}

void Writer::Item(absl::string_view separator, absl::string_view item, size_t indent) {
  Text(separator);
  if (out_.size() - line_begin_ + 1 + item.size() > kColumns &&
      out_.size() - line_begin_ > indent) {
    EndLine();
    out_.append(indent, ' ');
  } else if (!separator.empty() && separator.back() == ',') {
    out_.push_back(' ');
  }
  Text(item);
}

void Writer::EndLine() {
  while (!out_.empty() && out_.back() == ' ') out_.pop_back();
  out_.push_back('\n');
  line_begin_ = out_.size();
}

std::string InQuotes(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out + "\"";
}

std::string Quoted(absl::string_view text) {
  return IsWord(text) ? std::string(text) : InQuotes(text);
}

std::string QuotedText(absl::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), IsWordChar);
  return plain ? std::string(text) : InQuotes(text);
}

NodeNames::NodeNames(const Graph& graph) : graph_(graph) {
  for (NodeId n = 0; n < graph.size(); ++n) {
    const absl::string_view name = graph.node_name(n);
    if (!name.empty()) ++count_[name];
  }
}

bool NodeNames::IsOwn(NodeId n) const {
  const absl::string_view name = graph_.node_name(n);
  return !name.empty() && count_.at(name) == 1;
}

std::string NodeNames::Of(NodeId n) const {
  // Orders of plans that are not legal may name nodes that are not there.
  const bool exists = n >= 0 && n < graph_.size();
  return exists && IsOwn(n) ? absl::StrCat("%", Quoted(graph_.node_name(n))) : absl::StrCat("%", n);
}

std::string NodeNames::Definition(NodeId n) const {
  if (IsOwn(n)) return Of(n);
  const absl::string_view name = graph_.node_name(n);
  return name.empty() ? absl::StrCat("%", n) : absl::StrCat("%", n, "(", QuotedText(name), ")");
}

void WritePlan(const Graph& graph, const NodeNames& names, const Plan& plan, Writer& writer) {
  writer.Text("plan {");
  writer.EndLine();
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    const Bucket& bucket = plan.buckets[k];
    writer.Text(absl::StrCat("  bucket b", k, " = "));
    if (!bucket.members.empty()) {
      const CollectiveId c = graph.collective_of(bucket.members.front());
      writer.Text(absl::StrCat(Name(graph.collective(c).kind), " "));
    }
    writer.Text("{");
    for (size_t i = 0; i < bucket.members.size(); ++i) {
      writer.Item(i == 0 ? "" : ",", names.Of(bucket.members[i]), kListIndent);
    }
    writer.Text("}");
    if (bucket.mode == BucketMode::kGrouped) writer.Text(" grouped");
    if (bucket.copies == CopyStream::kComm) writer.Text(" copies_on_comm");
    const bool plain = FindUnprintable(bucket.name) == absl::string_view::npos;
    if (!bucket.name.empty()) {
      writer.Text(absl::StrCat(" name=", QuotedText(plain ? bucket.name : Printable(bucket.name))));
    }
    writer.EndLine();
  }
  writer.Text("  order {");
  writer.EndLine();
  writer.Text("    ");
  const auto [from, to] = WrittenSteps(graph, plan.order);
  for (size_t i = from; i < to; ++i) {
    writer.Item(i == from ? "" : " ", StepText(names, plan.order[i]), 4);
  }
  writer.EndLine();
  writer.Text("  }");
  writer.EndLine();
  writer.Text("}");
  writer.EndLine();
}

}  // namespace text_internal

std::string PrintPlan(const Graph& graph, const Plan& plan) {
  text_internal::Writer writer;
  text_internal::WritePlan(graph, text_internal::NodeNames(graph), plan, writer);
  return std::move(writer).Take();
}

}  // namespace bucketd
