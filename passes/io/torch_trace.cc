#include "passes/io/torch_trace.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "passes/base/collectives.h"
#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"
#include "passes/io/torch_trace_events.h"

namespace bucketd {
namespace {

using torch_trace::DTypeOf;
using torch_trace::Event;
using torch_trace::KindOf;
using torch_trace::Trace;

constexpr char kNoShapes[] = "no sizes stated (record_shapes=True writes them)";

// Whether all ranks get as much: "" and "[]" say so, "[4, 4]" too, a list cut short does not.
bool IsEven(absl::string_view splits) {
  if (splits.empty() || splits == "[]") return true;
  const std::vector<int32_t> parts = torch_trace::ParseRanks(splits);
  return !parts.empty() && std::count(parts.begin(), parts.end(), parts[0]) ==
                               static_cast<std::ptrdiff_t>(parts.size());
}

bool StartsEarlier(const Event* a, const Event* b) { return a->start_ns < b->start_ns; }

class Interpreter {
 public:
  Interpreter(const Trace& raw, RankTrace& trace) : raw_(raw), trace_(trace) {}

  void Run() {
    trace_.rank = static_cast<int32_t>(raw_.rank);
    trace_.host = raw_.host;
    std::vector<const Event*> kernels, spans, calls;
    for (const Event& event : raw_.events) {
      if (event.kind == Event::Kind::kKernel) kernels.push_back(&event);
      if (event.kind == Event::Kind::kGlooSpan) spans.push_back(&event);
      if (event.kind == Event::Kind::kCall) calls.push_back(&event);
      if (event.kind == Event::Kind::kFunctional) functional_[event.thread].push_back(&event);
      if (event.kind == Event::Kind::kComms) comms_.emplace(event.external_id, &event);
    }
    for (auto* events : {&kernels, &spans, &calls}) {
      std::stable_sort(events->begin(), events->end(), StartsEarlier);
    }
    for (auto& [thread, events] : functional_) {
      std::stable_sort(events.begin(), events.end(), StartsEarlier);
    }
    for (const Event* kernel : kernels) AddKernel(*kernel);
    AddSpans(spans, calls);
    NumberUnsequenced();
  }

 private:
  void Skip(absl::string_view why) { ++trace_.skipped[std::string(why)]; }

  void AddKernel(const Event& kernel) {
    const auto linked = comms_.find(kernel.external_id);
    const Event* call = linked == comms_.end() || kernel.external_id < 0 ? nullptr : linked->second;
    const Event* said = kernel.collective.empty() ? call : &kernel;
    if (said == nullptr || said->collective.empty()) {
      return Skip("NCCL kernels that no record_param_comms event explains");
    }
    TracedCollective c;
    c.kind = KindOf(said->collective);
    c.sequence = said->sequence;
    if (c.kind == CollectiveKind::kUnspecified) {
      return Skip(absl::StrCat("no collective that plans price: ",
                               absl::CHexEscape(said->collective.substr(0, 40))));
    }
    c.group = GroupOf(*said);
    if (c.group < 0) return Skip("process groups whose ranks are not stated in full");
    const auto size = static_cast<int64_t>(GroupAt(c.group).ranks.size());
    if (said->group_size >= 0 && said->group_size != size) {
      return Skip("process groups of another size than their list of ranks");
    }
    if (size < 2) return Skip("process groups of one rank");
    if (!IsEven(said->in_split) || !IsEven(said->out_split)) return Skip("uneven all-to-alls");
    c.launches = LaunchesOf(*said, call);
    if (c.launches == 0) {
      return Skip("grouped launches of unknown length (record_shapes=True writes it)");
    }
    if (!SetBytes(*said, size, c)) return;
    Add(kernel, c);
  }

  // False if there is no size; it is counted then.
  bool SetBytes(const Event& said, int64_t size, TracedCollective& c) {
    c.dtype = DTypeOf(said.dtype);
    if (c.dtype == DType::kUnspecified) {
      Skip("unknown dtypes");
      return false;
    }
    const int64_t in = said.in_elements, out = said.out_elements;
    const bool gathers = Gathers(c.kind);
    const int64_t full = gathers ? out : Exchanges(c.kind) ? std::max(in, out) : in;
    const bool has_parts = gathers || Scatters(c.kind);
    if (in < 0 || out < 0 || full == 0 || (has_parts && full / size != (gathers ? in : out))) {
      Skip("sizes that do not fit the process group, or none");
      return false;
    }
    return Scale(full, ItemSize(c.dtype), c.bytes);
  }

  bool Scale(int64_t a, int64_t b, int64_t& product) {
    if (a >= 0 && !__builtin_mul_overflow(a, b, &product)) return true;
    Skip("absurd sizes");
    return false;
  }

  // 0 if unknown. Functional collectives go by the coalesced form, mostly with one tensor.
  int32_t LaunchesOf(const Event& said, const Event* call) const {
    if (!absl::StrContains(said.collective, "coalesced")) return 1;
    if (call != nullptr && call->shapes.stated) return std::max(1, call->shapes.listed);
    return call != nullptr && IsOfOneTensor(*call) ? 1 : 0;
  }

  // Whether the call came from a functional op of one tensor, which then is around it.
  bool IsOfOneTensor(const Event& call) const {
    const auto thread = functional_.find(call.thread);
    if (thread == functional_.end()) return false;
    auto after =
        std::upper_bound(thread->second.begin(), thread->second.end(), &call, StartsEarlier);
    if (after == thread->second.begin()) return false;
    const Event& op = **std::prev(after);
    return op.start_ns + op.duration_ns >= call.start_ns + call.duration_ns &&
           KindOf(op.name) == KindOf(call.collective) && !absl::StrContains(op.name, "coalesced");
  }

  // Index of the event's process group, -1 if its ranks are unknown.
  int32_t GroupOf(const Event& said) {
    for (const torch_trace::Group& group : raw_.groups) {
      if (group.name == said.group_name && !group.ranks.empty()) {
        return Intern(group.name, group.desc, group.ranks, true);
      }
    }
    const std::vector<int32_t> ranks = torch_trace::ParseRanks(said.group_ranks);
    return ranks.empty() ? -1 : Intern(said.group_name, said.group_desc, ranks, true);
  }

  // DeviceMesh describes the group of its dimension "dp" as "mesh_dp".
  int32_t Intern(const std::string& name, absl::string_view desc, std::vector<int32_t> ranks,
                 bool sequenced) {
    const auto [it, is_new] = group_ids_.emplace(std::make_pair(name, sequenced),
                                                 static_cast<int32_t>(trace_.groups.size()));
    if (!is_new) return it->second;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    const bool is_dim = absl::ConsumePrefix(&desc, "mesh_");
    trace_.groups.push_back({sequenced ? name : absl::StrCat(name, " (gloo)"),
                             is_dim ? std::string(desc) : "", std::move(ranks), sequenced});
    return it->second;
  }

  TracedGroup& GroupAt(int32_t group) { return trace_.groups[static_cast<size_t>(group)]; }

  void Add(const Event& event, TracedCollective& c) {
    c.start_ns = raw_.base_ns + event.start_ns;
    c.picoseconds = event.duration_ns * 1000;
    if (c.sequence < 0) GroupAt(c.group).sequenced = false;
    trace_.collectives.push_back(c);
  }

  void AddSpans(const std::vector<const Event*>& spans, const std::vector<const Event*>& calls) {
    if (spans.empty()) return;
    const torch_trace::Group* only = nullptr;
    int groups = 0;
    for (const torch_trace::Group& group : raw_.groups) {
      if (group.ranks.size() < 2) continue;
      only = &group;
      ++groups;
    }
    if (groups != 1) {
      trace_.skipped[absl::StrCat("gloo spans of a process in ", groups,
                                  " groups: they do not say of which")] +=
          static_cast<int64_t>(spans.size());
      return;
    }
    const int32_t group = Intern(only->name, only->desc, only->ranks, false);
    const bool matched = Match(spans, calls);
    for (size_t i = 0; i < spans.size(); ++i) {
      AddSpan(*spans[i], matched ? calls[i] : nullptr, group);
    }
  }

  // Whether each call began the span at its place.
  static bool Match(const std::vector<const Event*>& spans,
                    const std::vector<const Event*>& calls) {
    if (spans.size() != calls.size()) return false;
    for (size_t i = 0; i < spans.size(); ++i) {
      const CollectiveKind span = KindOf(spans[i]->name), call = KindOf(calls[i]->name);
      const bool reduced = ReducesWhole(span) && Scatters(call);
      if ((span != call && !reduced) || spans[i]->start_ns < calls[i]->start_ns) return false;
    }
    return true;
  }

  void AddSpan(const Event& span, const Event* call, int32_t group) {
    TracedCollective c;
    c.group = group;
    c.kind = KindOf(call == nullptr ? span.name : call->name);
    if (c.kind == CollectiveKind::kUnspecified) return Add(span, c);  // it has a position
    if (ReducesWhole(c.kind) && call == nullptr) {
      return Skip("gloo's all_reduce spans without their c10d calls: some may be reduce-scatters");
    }
    const torch_trace::Shapes& shapes = span.shapes;
    if (!shapes.stated || shapes.tensors == 0) return Skip(kNoShapes);
    c.dtype = DTypeOf(shapes.dtype);
    if (c.dtype == DType::kUnspecified || shapes.mixed) return Skip("unknown dtypes");
    const bool gathers = Gathers(c.kind);
    c.launches = shapes.tensors;
    if (!Scale(shapes.elements, ItemSize(c.dtype), c.bytes)) return;
    const auto ranks = static_cast<int64_t>(GroupAt(group).ranks.size());
    if (gathers && !Scale(c.bytes, ranks, c.bytes)) return;
    Add(span, c);
  }

  // Collectives are in the order in which they began, kernels first.
  void NumberUnsequenced() {
    std::vector<int64_t> next(trace_.groups.size(), 0);
    for (TracedCollective& c : trace_.collectives) {
      if (!GroupAt(c.group).sequenced) c.sequence = next[static_cast<size_t>(c.group)]++;
    }
  }

  const Trace& raw_;
  RankTrace& trace_;
  std::map<int64_t, const Event*> comms_;                    // by external id
  std::map<int64_t, std::vector<const Event*>> functional_;  // by thread, as they began
  std::map<std::pair<std::string, bool>, int32_t> group_ids_;
};

}  // namespace

absl::StatusOr<RankTrace> ReadTorchTrace(absl::string_view bytes, const std::string& source,
                                         int64_t max_json_bytes) {
  ASSIGN_OR_RETURN(
      const Trace raw,
      torch_trace::ParseTrace(bytes, source, torch_trace::Interest::kCollectives, max_json_bytes));
  if (raw.rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(source,
                     ": \"distributedInfo\" states no rank; expected the trace of a process "
                     "with torch.distributed initialised"));
  }
  RankTrace trace;
  trace.source = source;
  Interpreter(raw, trace).Run();
  return trace;
}

absl::StatusOr<RankTrace> ReadTorchTraceFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxTraceBytes));
  return ReadTorchTrace(bytes, path);
}

}  // namespace bucketd
