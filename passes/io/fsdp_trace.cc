#include "passes/io/fsdp_trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "passes/base/collectives.h"
#include "passes/base/int128.h"
#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"
#include "passes/io/torch_trace_events.h"
#include "passes/ir/ops.h"

namespace bucketd {
namespace {

using torch_trace::Event;
using torch_trace::Trace;
using Kind = FsdpStep::Event::Kind;

constexpr char kRecord[] =
    "; expected what export_chrome_trace writes of one or two steps of a model under fully_shard, "
    "forward and backward, recorded by torch.profiler.profile(record_shapes=True)";
constexpr int64_t kMaxShard = int64_t{1} << 40;  // elements
constexpr size_t kMaxMarks = size_t{1} << 18;    // of a step
constexpr int64_t kMaxLooks = int64_t{1}
                              << 23;  // at events in marks: four times all that a trace may have
constexpr int64_t kMaxRanks = int64_t{1} << 24;
// Of a step: an hour. Times of all events of a trace together then fit 64 bits.
constexpr int64_t kMaxStepNs = 3'600'000'000'000;

int64_t EndOf(const Event& event) { return event.start_ns + event.duration_ns; }

// Outer ones first.
bool Before(const Event* a, const Event* b) {
  if (a->start_ns != b->start_ns) return a->start_ns < b->start_ns;
  return a->duration_ns > b->duration_ns;
}

struct Span {
  int64_t start_ns = 0, end_ns = 0;
};

// "FSDP::all_gather (layers.0)" -> {"all_gather", "layers.0"}.
std::pair<absl::string_view, absl::string_view> Parts(absl::string_view mark) {
  absl::ConsumePrefix(&mark, "FSDP::");
  const size_t at = mark.find(" (");
  if (at == absl::string_view::npos || !absl::EndsWith(mark, ")")) return {mark, ""};
  return {mark.substr(0, at), mark.substr(at + 2, mark.size() - at - 3)};
}

class StepReader {
 public:
  StepReader(const Trace& trace, FsdpStep& step) : step_(step) {
    for (const Event& event : trace.events) by_kind_[event.kind].push_back(&event);
    for (auto& [kind, events] : by_kind_) std::stable_sort(events.begin(), events.end(), Before);
  }

  absl::Status Run() {
    RETURN_IF_ERROR(ChooseStep());
    for (const Event* mark : marks_) {
      RETURN_IF_ERROR(ReadMark(*mark));
      RETURN_IF_ERROR(CheckLooks());
    }
    if (step_.ranks == 0) return Wrong("its marks hold no all-gather");
    for (FsdpStep::Unit& unit : step_.units) {
      if (unit.reduced == DType::kUnspecified) unit.reduced = unit.gathered;
      if (unit.gathered == DType::kUnspecified) unit.gathered = unit.reduced;
    }
    RETURN_IF_ERROR(FindSpans());
    WriteEvents();
    Measure();
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return absl::FailedPreconditionError(absl::StrCat(step_.source, ": ", what, kRecord));
  }

  // Marks of real steps hold few events and next to no marks; others would take time by the square.
  absl::Status CheckLooks() const {
    if (looks_ <= kMaxLooks) return absl::OkStatus();
    return Wrong("marks that hold each other, as no model makes them");
  }

  // The step of median length of those that are there from their first mark to their last.
  absl::Status ChooseStep() {
    const std::vector<const Event*>& marks = by_kind_[Event::Kind::kMark];
    if (marks.empty()) return Wrong("no marks of FSDP2 (\"FSDP::...\")");
    std::vector<std::pair<size_t, size_t>> whole;
    bool open = false;
    size_t begin = 0;
    for (size_t i = 0; i < marks.size(); ++i) {
      const absl::string_view label = Parts(marks[i]->name).first;
      if (label == "root_pre_forward") begin = i, open = true;
      if (label != "root_post_backward_callback" || !open) continue;
      size_t end = i + 1;  // what is in the last mark, too
      while (end < marks.size() && marks[end]->start_ns < EndOf(*marks[i])) ++end;
      open = false;
      looks_ += static_cast<int64_t>(end - begin);
      RETURN_IF_ERROR(CheckLooks());
      const bool reduces = std::any_of(
          marks.begin() + static_cast<std::ptrdiff_t>(begin),
          marks.begin() + static_cast<std::ptrdiff_t>(end),
          [](const Event* mark) { return Parts(mark->name).first == "post_backward_reduce"; });
      if (reduces) whole.emplace_back(begin, end);  // others leave gradients for a later one
    }
    if (whole.empty()) {
      return Wrong(
          "no step in full (\"FSDP::root_pre_forward\" to "
          "\"FSDP::root_post_backward_callback\", with gradients reduced in between)");
    }
    const auto length = [&](const std::pair<size_t, size_t>& at) {
      return EndOf(*marks[at.second - 1]) - marks[at.first]->start_ns;
    };
    std::stable_sort(whole.begin(), whole.end(),
                     [&](const auto& a, const auto& b) { return length(a) < length(b); });
    const auto [from, to] = whole[(whole.size() - 1) / 2];
    if (to - from > kMaxMarks) return Wrong("a step of more marks than any model makes");
    step_.steps = static_cast<int32_t>(whole.size());
    marks_.assign(marks.begin() + static_cast<std::ptrdiff_t>(from),
                  marks.begin() + static_cast<std::ptrdiff_t>(to));
    return absl::OkStatus();
  }

  int32_t UnitOf(absl::string_view name) {
    const auto [at, is_new] =
        units_.emplace(std::string(name), static_cast<int32_t>(step_.units.size()));
    if (is_new) step_.units.emplace_back().name = std::string(name);
    return at->second;
  }

  // Events of a kind that begin in the mark, on its thread.
  std::vector<const Event*> In(const Event& mark, Event::Kind kind) {
    const std::vector<const Event*>& all = by_kind_[kind];
    std::vector<const Event*> found;
    auto at = std::lower_bound(all.begin(), all.end(), mark.start_ns,
                               [](const Event* e, int64_t time) { return e->start_ns < time; });
    for (; at != all.end() && (*at)->start_ns < EndOf(mark); ++at, ++looks_) {
      if ((*at)->thread == mark.thread) found.push_back(*at);
    }
    return found;
  }

  absl::Status ReadMark(const Event& mark) {
    const auto [label, name] = Parts(mark.name);
    if (label == "all_gather") {
      FsdpStep::Unit& unit = step_.units[static_cast<size_t>(UnitOf(name))];
      ++unit.gathers;
      return ReadSizes(mark, CollectiveKind::kAllGather, unit);
    }
    if (label != "post_backward_reduce") return absl::OkStatus();
    return ReadSizes(mark, CollectiveKind::kReduceScatter,
                     step_.units[static_cast<size_t>(UnitOf(name))]);
  }

  // What the mark's collective says of the unit.
  absl::Status ReadSizes(const Event& mark, CollectiveKind kind, FsdpStep::Unit& unit) {
    const bool gathers = kind == CollectiveKind::kAllGather;
    const Event* call = nullptr;
    for (const Event* event : In(mark, Event::Kind::kCall)) {
      const CollectiveKind is = torch_trace::KindOf(event->name);
      if (is == CollectiveKind::kAllReduce) {
        return Wrong(
            "gradients are reduced over a second mesh dimension, too (HSDP), and what is "
            "wrapped over two meshes is not advised on yet");
      }
      if (is == kind) call = event;
    }
    if (call == nullptr) return absl::OkStatus();  // one rank, or nothing to move
    ++launches_;
    // NCCL's sizes are always there, those of the call if shapes were recorded.
    int64_t out = -1, in = -1;
    DType dtype = torch_trace::DTypeOf(call->shapes.dtype);
    if (call->shapes.sizes.size() >= 2) out = call->shapes.sizes[0], in = call->shapes.sizes[1];
    for (const Event* comms : In(*call, Event::Kind::kComms)) {
      if (torch_trace::KindOf(comms->collective) != kind) continue;
      out = comms->out_elements, in = comms->in_elements;
      dtype = torch_trace::DTypeOf(comms->dtype);
    }
    const int64_t shard = gathers ? in : out, full = gathers ? out : in;
    if (shard < 0 || full < 0 || dtype == DType::kUnspecified) {
      return Wrong("collectives without their sizes");
    }
    if (shard == 0 || shard > kMaxShard || full % shard != 0 || full / shard > kMaxRanks) {
      return Wrong(
          absl::StrCat("a collective of absurd sizes (", in, " elements in, ", out, " out)"));
    }
    if (full == shard) return Wrong("parameters are sharded over one rank");
    const auto ranks = static_cast<int32_t>(full / shard);
    if (step_.ranks != 0 && step_.ranks != ranks) {
      return Wrong(absl::StrCat("parameters are sharded over ", step_.ranks, " and over ", ranks,
                                " ranks, and what is wrapped over two meshes is not advised on "
                                "yet"));
    }
    step_.ranks = ranks;
    (gathers ? unit.gathered : unit.reduced) = dtype;
    if (gathers || unit.shards.empty()) unit.shards = ShardsOf(mark, shard);
    return absl::OkStatus();
  }

  std::vector<int64_t> ShardsOf(const Event& mark, int64_t all) {
    for (const Event* copy : In(mark, Event::Kind::kCopyIn)) {
      const std::vector<int64_t>& each = copy->shapes.listed_sizes;
      looks_ += static_cast<int64_t>(each.size());
      int64_t sum = 0;
      bool fit = !each.empty();
      for (const int64_t size : each) {
        fit = fit && size > 0 && size <= all - sum;
        if (fit) sum += size;
      }
      if (fit && sum == all) return each;
    }
    return {all};
  }

  // Of marks that are in no other, with what lies between them; and of work on a GPU.
  absl::Status FindSpans() {
    for (const Event* mark : marks_) {
      if (outer_.empty() || mark->start_ns >= outer_.back().end_ns) {
        outer_.push_back({mark->start_ns, EndOf(*mark)});
      } else {
        outer_.back().end_ns = std::max(outer_.back().end_ns, EndOf(*mark));
      }
    }
    between_ps_.assign(outer_.size(), 0);
    step_.on_gpu = !by_kind_[Event::Kind::kWork].empty() || !by_kind_[Event::Kind::kKernel].empty();
    if (step_.on_gpu) AddWork();
    end_ns_ = std::max(outer_.back().end_ns, last_work_ns_);
    if (end_ns_ - outer_.front().start_ns > kMaxStepNs) return Wrong("a step of more than an hour");
    for (size_t i = 0; !step_.on_gpu && i + 1 < outer_.size(); ++i) {
      between_ps_[i] = (outer_[i + 1].start_ns - outer_[i].end_ns) * 1000;
    }
    return absl::OkStatus();
  }

  // The last of `outer_` that begins by then. REQUIRES: the first one does.
  size_t OuterAt(int64_t time) const {
    const auto after = std::upper_bound(outer_.begin(), outer_.end(), time,
                                        [](int64_t t, const Span& s) { return t < s.start_ns; });
    return static_cast<size_t>(after - outer_.begin()) - 1;
  }

  // Each kernel and copy counts where it was launched.
  void AddWork() {
    std::map<int64_t, const Event*> launches;
    for (const Event* call : by_kind_[Event::Kind::kLaunch]) {
      if (call->correlation >= 0) launches.emplace(call->correlation, call);
    }
    for (const Event* work : by_kind_[Event::Kind::kWork]) {
      const auto launch = launches.find(work->correlation);
      if (launch == launches.end()) continue;
      const int64_t time = launch->second->start_ns;
      if (time < outer_.front().start_ns || time >= outer_.back().end_ns) continue;
      last_work_ns_ = std::max(last_work_ns_, EndOf(*work));
      const size_t i = OuterAt(time);
      if (time < outer_[i].end_ns) continue;
      between_ps_[i] = CappedSum(between_ps_[i], work->duration_ns * 1000);
    }
  }

  void WriteEvents() {
    bool backward = false;
    size_t next = 0;
    for (size_t i = 0; i < outer_.size(); ++i) {
      for (; next < marks_.size() && marks_[next]->start_ns < outer_[i].end_ns; ++next) {
        const auto [label, name] = Parts(marks_[next]->name);
        const auto known = units_.find(std::string(name));
        if (label == "pre_backward") backward = true;
        if (known == units_.end()) continue;  // nothing of it is moved
        const auto add = [&](Kind kind) {
          step_.events.push_back({kind, known->second, 0, backward});
        };
        if (label == "pre_forward" || label == "pre_backward") add(Kind::kUse);
        if (label == "post_forward" || label == "post_backward_reshard") add(Kind::kRelease);
        if (label == "post_backward_reduce") add(Kind::kReduce);
      }
      if (between_ps_[i] <= 0) continue;
      step_.events.push_back({Kind::kCompute, -1, between_ps_[i], backward});
    }
  }

  void Measure() {
    const int64_t begin = outer_.front().start_ns, end = outer_.back().end_ns;
    step_.total_ps = (end_ns_ - begin) * 1000;
    if (step_.on_gpu) return;
    // Marks hold the collectives, if those keep the host; then next to nothing of them is beside.
    int64_t in_marks = 0, collectives = 0, marked = 0;
    std::vector<int64_t> before;  // time in marks before each of them
    for (const Span& outer : outer_) {
      before.push_back(marked);
      marked += outer.end_ns - outer.start_ns;
    }
    const auto marked_until = [&](int64_t time) {  // REQUIRES: not before the first one
      const size_t i = OuterAt(time);
      return before[i] + std::min(time, outer_[i].end_ns) - outer_[i].start_ns;
    };
    for (const Event* event : by_kind_[Event::Kind::kGlooSpan]) {
      const Span span{std::max(begin, event->start_ns), std::min(end, EndOf(*event))};
      if (span.end_ns <= span.start_ns) continue;
      collectives += span.end_ns - span.start_ns;
      in_marks += marked_until(span.end_ns) - marked_until(span.start_ns);
    }
    step_.waits_at_launch = Int128{in_marks} * 10 >= Int128{collectives} * 9;
    if (!step_.waits_at_launch || launches_ == 0) return;
    step_.host_ps_per_collective = std::max(int64_t{0}, marked - in_marks) * 1000 / launches_;
  }

  FsdpStep& step_;
  std::map<Event::Kind, std::vector<const Event*>> by_kind_;
  std::map<std::string, int32_t> units_;
  std::vector<const Event*> marks_;  // of the chosen step
  std::vector<Span> outer_;
  std::vector<int64_t> between_ps_;  // behind each of `outer_`
  int64_t last_work_ns_ = 0;         // on a GPU
  int64_t end_ns_ = 0;
  int64_t launches_ = 0;
  int64_t looks_ = 0;  // at events in marks, and at sizes in them
};

}  // namespace

absl::StatusOr<FsdpStep> ReadFsdpTrace(absl::string_view bytes, const std::string& source,
                                       int64_t max_json_bytes) {
  const absl::StatusOr<Trace> trace =
      torch_trace::ParseTrace(bytes, source, torch_trace::Interest::kStep, max_json_bytes);
  if (!trace.ok()) {
    return absl::Status(trace.status().code(), absl::StrCat(trace.status().message(), kRecord));
  }
  FsdpStep step;
  step.source = source;
  RETURN_IF_ERROR(StepReader(*trace, step).Run());
  return step;
}

absl::StatusOr<FsdpStep> ReadFsdpTraceFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxStepTraceBytes));
  return ReadFsdpTrace(bytes, path);
}

}  // namespace bucketd
