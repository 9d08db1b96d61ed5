#include "passes/io/chrome_trace.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "passes/io/json_fields.h"
#include "passes/ir/ops.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

using internal::Quoted;

// Microseconds with every picosecond, without a double.
std::string Us(int64_t ps) { return absl::StrFormat("%d.%06d", ps / 1'000'000, ps % 1'000'000); }

std::string Spoken(CollectiveKind kind) { return absl::StrReplaceAll(Name(kind), {{"_", "-"}}); }

// Events stand one a line.
void Append(absl::string_view event, std::string& out) {
  absl::StrAppend(&out, out.empty() ? "" : ",\n", event);
}

std::string ProcessName(int pid, absl::string_view name) {
  return absl::StrCat("{\"ph\": \"M\", \"pid\": ", pid,
                      ", \"name\": \"process_name\", \"args\": {\"name\": ", Quoted(name), "}}");
}

std::string TrackName(int pid, int64_t track, absl::string_view name) {
  return absl::StrCat("{\"ph\": \"M\", \"pid\": ", pid, ", \"tid\": ", track,
                      ", \"name\": \"thread_name\", \"args\": {\"name\": ", Quoted(name), "}}");
}

// Writes one simulated run as one process of the trace.
class Process {
 public:
  Process(const Graph& graph, const Plan& plan, const Costs& costs, int pid, std::string& out)
      : graph_(graph),
        plan_(plan),
        simulation_(Simulate(graph, plan, costs, /*with_timeline=*/true)),
        pid_(pid),
        out_(out) {}

  void Write(absl::string_view title) {
    Tracks(title);
    for (const TimelineEvent& event : simulation_.events) WriteEvent(event);
    LiveMemory();
  }

 private:
  using Kind = TimelineEvent::Kind;
  static constexpr int kComputeTrack = 1;
  static constexpr int kStallTrack = 2;
  static constexpr int kFirstGroupTrack = 3;

  void NameTrack(int track, absl::string_view name) {
    Append(TrackName(pid_, track, name), out_);
    Append(
        absl::StrCat("{\"ph\": \"M\", \"pid\": ", pid_, ", \"tid\": ", track,
                     ", \"name\": \"thread_sort_index\", \"args\": {\"sort_index\": ", track, "}}"),
        out_);
  }

  void Tracks(absl::string_view title) {
    const Prediction& p = simulation_.prediction;
    const std::string name =
        absl::StrFormat("%s: %.3f ms, %.3f ms exposed, %d collectives", title,
                        static_cast<double>(p.total_ps) * 1e-9,
                        static_cast<double>(p.exposed_ps) * 1e-9, p.collectives);
    Append(ProcessName(pid_, name), out_);
    NameTrack(kComputeTrack, "compute stream");
    NameTrack(kStallTrack, "stalls (exposed communication)");
    for (size_t g = 0; g < graph_.groups().size(); ++g) {
      const Group& group = graph_.groups()[g];
      std::string track =
          absl::StrCat("communication: ", group.mesh_dim, ", ", group.size, " ranks");
      if (group.lane > 0) absl::StrAppend(&track, ", lane ", group.lane);
      NameTrack(kFirstGroupTrack + static_cast<int>(g), track);
    }
  }

  int TrackOf(const TimelineEvent& event) const {
    if (event.kind == Kind::kStall) return kStallTrack;
    return event.group < 0 ? kComputeTrack : kFirstGroupTrack + event.group;
  }

  std::string BucketTitle(BucketId k) const {
    const Bucket& bucket = plan_.buckets[static_cast<size_t>(k)];
    const std::string name = bucket.name.empty() ? absl::StrCat("bucket ", k) : bucket.name;
    const Collective& c = graph_.collective(graph_.collective_of(bucket.members.front()));
    return absl::StrCat(Spoken(c.kind), " ", name, " (", bucket.members.size(), ")");
  }

  std::string NodeTitle(NodeId n) const {
    const CollectiveId c = graph_.collective_of(n);
    std::string title =
        c >= 0 ? Spoken(graph_.collective(c).kind) : std::string(BaseName(graph_.op(n)));
    const absl::string_view module = graph_.module(n);
    if (!module.empty()) absl::StrAppend(&title, " ", module);
    return title;
  }

  struct KindText {
    absl::string_view category, verb;
  };
  static KindText TextOf(Kind kind) {
    switch (kind) {
      case Kind::kCompute:
        return {"compute", ""};
      case Kind::kCollective:
        return {"collective", ""};
      case Kind::kCopyIn:
        return {"copy", "copy in: "};
      case Kind::kCopyOut:
        return {"copy", "copy out: "};
      case Kind::kStall:
        break;
    }
    return {"stall", "wait for "};
  }

  std::string BucketArgs(BucketId k) const {
    const Bucket& bucket = plan_.buckets[static_cast<size_t>(k)];
    const std::string members = absl::StrJoin(
        bucket.members, ", ",
        [&](std::string* out, NodeId n) { absl::StrAppend(out, graph_.Describe(n)); });
    return absl::StrCat("\"bucket\": ", k, ", \"mode\": ", Quoted(Name(bucket.mode)),
                        ", \"bytes\": ", bucket.bytes, ", \"members\": ", Quoted(members));
  }

  std::string NodeArgs(NodeId n) const {
    std::string args =
        absl::StrCat("\"node\": ", Quoted(graph_.Describe(n)), ", \"op\": ", Quoted(graph_.op(n)),
                     ", \"module\": ", Quoted(graph_.module(n)));
    const CollectiveId c = graph_.collective_of(n);
    if (c >= 0) {
      absl::StrAppend(&args, ", \"bytes\": ", graph_.collective(c).bytes);
    } else {
      absl::StrAppend(&args, ", \"flops\": ", graph_.flops(n));
    }
    return args;
  }

  void WriteEvent(const TimelineEvent& event) {
    const KindText text = TextOf(event.kind);
    const bool of_bucket = event.bucket >= 0;
    const std::string title = of_bucket ? BucketTitle(event.bucket) : NodeTitle(event.node);
    Append(absl::StrCat("{\"ph\": \"X\", \"pid\": ", pid_, ", \"tid\": ", TrackOf(event),
                        ", \"ts\": ", Us(event.start_ps), ", \"dur\": ",
                        Us(event.end_ps - event.start_ps), ", \"cat\": \"", text.category,
                        "\", \"name\": ", Quoted(absl::StrCat(text.verb, title)), ", \"args\": {",
                        of_bucket ? BucketArgs(event.bucket) : NodeArgs(event.node), "}}"),
           out_);
  }

  // Of several steps at one moment the last one counts.
  void LiveMemory() {
    const std::vector<int64_t>& clock = simulation_.step_compute_ps;
    const std::vector<int64_t>& live = simulation_.live_bytes;
    int64_t written = -1;
    for (size_t i = 0; i < live.size(); ++i) {
      const bool last_at_this_moment = i + 1 == live.size() || clock[i + 1] != clock[i];
      if (!last_at_this_moment || live[i] == written) continue;
      written = live[i];
      Append(absl::StrCat("{\"ph\": \"C\", \"pid\": ", pid_, ", \"ts\": ", Us(clock[i]),
                          ", \"name\": \"live memory\", \"args\": {\"bytes\": ", live[i], "}}"),
             out_);
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Simulation simulation_;
  const int pid_;
  std::string& out_;
};

// What was measured, as one process of the trace.
void WriteMeasured(const std::string& title, absl::Span<const MeasuredSpan> measured, int pid,
                   std::string& out) {
  Append(ProcessName(pid, title), out);
  std::vector<std::string> tracks;
  for (const MeasuredSpan& span : measured) {
    const auto known = std::find(tracks.begin(), tracks.end(), span.track);
    const auto tid = known - tracks.begin() + 1;
    if (known == tracks.end()) {
      tracks.push_back(span.track);
      Append(TrackName(pid, tid, span.track), out);
    }
    Append(absl::StrCat("{\"ph\": \"X\", \"pid\": ", pid, ", \"tid\": ", tid, ", \"ts\": ",
                        Us(span.begin_ps), ", \"dur\": ", Us(span.end_ps - span.begin_ps),
                        ", \"cat\": \"measured\", \"name\": ", Quoted(span.name), "}"),
           out);
  }
}

std::string Whole(const Graph& graph, const Costs& costs, absl::string_view events) {
  return absl::StrCat("{\"displayTimeUnit\": \"ms\", \"otherData\": {\"graph\": ",
                      Quoted(graph.name()), ", \"cost_profile\": ", Quoted(costs.profile_id()),
                      "},\n\"traceEvents\": [\n", events, "\n]}\n");
}

std::string TitleOf(const Plan& plan) {
  return plan.mode.empty() ? "planned" : absl::StrCat("planned (", plan.mode, ")");
}

}  // namespace

std::string ChromeTrace(const Graph& graph, const Plan& plan, const Costs& costs,
                        bool with_program_order) {
  std::string events;
  Process(graph, plan, costs, 1, events).Write(TitleOf(plan));
  if (with_program_order) {
    const Plan untouched = ProgramOrder(graph);
    Process(graph, untouched, costs, 2, events).Write("program order");
  }
  return Whole(graph, costs, events);
}

std::string MeasuredChromeTrace(const Graph& graph, const Plan& plan, const Costs& costs,
                                const std::string& title, absl::Span<const MeasuredSpan> measured) {
  std::string events;
  Process(graph, plan, costs, 1, events).Write(TitleOf(plan));
  WriteMeasured(title, measured, 2, events);
  return Whole(graph, costs, events);
}

}  // namespace bucketd
