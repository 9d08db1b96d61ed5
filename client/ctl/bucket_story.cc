#include "client/ctl/bucket_story.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/render/table.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"

namespace bucketd::ctl {
namespace {

std::string Us(int64_t ps) { return absl::StrFormat("%.1f us", static_cast<double>(ps) * 1e-6); }

std::string ShownChange(int64_t ps) {
  if (ps == 0) return "the same";
  return absl::StrCat(Us(std::abs(ps)), ps > 0 ? " more" : " less");
}

std::string Form(const Bucket& bucket) {
  if (bucket.mode == BucketMode::kGrouped) return "grouped";
  return bucket.copies == CopyStream::kComm ? "packed with copies beside the collective" : "packed";
}

}  // namespace

BucketStories::BucketStories(const Graph& graph, const Plan& plan, const Costs& costs)
    : graph_(graph),
      plan_(plan),
      costs_(costs),
      simulation_(Simulate(graph, plan, costs, /*with_timeline=*/true)),
      places_(plan.buckets.size()) {
  FindPlaces();
}

const Collective& BucketStories::First(BucketId b) const {
  return graph_.collective(graph_.collective_of(plan_.buckets[Index(b)].members.front()));
}

void BucketStories::FindPlaces() {
  std::vector<int64_t> computed(Index(graph_.size()), 0);
  std::vector<int64_t> free(graph_.groups().size(), 0);
  std::vector<int64_t> alone_end(graph_.collectives().size(), 0);
  for (const TimelineEvent& event : simulation_.events) {
    if (event.kind == TimelineEvent::Kind::kCompute) computed[Index(event.node)] = event.end_ps;
    if (event.kind == TimelineEvent::Kind::kCollective && event.bucket < 0) {
      alone_end[Index(graph_.collective_of(event.node))] = event.end_ps;
    }
  }
  int64_t clock = 0;
  for (size_t i = 0; i < plan_.order.size(); ++i) {
    const Step& step = plan_.order[i];
    if (step.kind == Step::Kind::kNode) {
      const CollectiveId c = graph_.collective_of(step.id);
      if (graph_.kind(step.id) == NodeKind::kCollective) {
        free[Index(graph_.collective(c).group)] = alone_end[Index(c)];
      } else {
        int64_t& at = computed[Index(step.id)];
        if (c >= 0) at = alone_end[Index(c)];
        for (const NodeId x : graph_.inputs(step.id)) at = std::max(at, computed[Index(x)]);
      }
    } else {
      Place& place = places_[Index(step.id)];
      const Bucket& bucket = plan_.buckets[Index(step.id)];
      if (step.kind == Step::Kind::kStart) {
        int64_t& stream = free[Index(First(step.id).group)];
        place.start = i;
        place.launched_ps = clock;
        place.free_ps = stream;
        stream = simulation_.bucket_wire[Index(step.id)].end_ps;
        for (const NodeId member : bucket.members) {
          for (const NodeId x : graph_.inputs(member)) {
            place.ready_ps = std::max(place.ready_ps, computed[Index(x)]);
          }
        }
      } else {
        place.wait = i;
        place.waited_ps = clock;
        for (const NodeId member : bucket.members) {
          computed[Index(graph_.collective(graph_.collective_of(member)).wait)] =
              simulation_.bucket_wire[Index(step.id)].end_ps;
        }
      }
    }
    clock = simulation_.step_compute_ps[i];
  }
}

std::string BucketStories::Members(BucketId b) const {
  const Bucket& bucket = plan_.buckets[Index(b)];
  const Collective& first = First(b);
  // A gather belongs to those who read it, a reduction to what it reduces.
  const bool gather = Gathers(first.kind);
  NodeId from = kNoNode, to = kNoNode;
  for (const NodeId member : bucket.members) {
    const Collective& c = graph_.collective(graph_.collective_of(member));
    const absl::Span<const NodeId> near = gather ? graph_.users(c.wait) : graph_.inputs(member);
    if (near.empty()) continue;
    if (from == kNoNode || near.front() < from) from = near.front();
    if (to == kNoNode || near.front() > to) to = near.front();
  }
  const auto place = [this](NodeId n) {
    const absl::string_view module = graph_.module(n);
    return module.empty() ? graph_.Describe(n) : std::string(module);
  };
  std::string text = absl::StrCat(bucket.members.size(), " ",
                                  absl::StrReplaceAll(Name(first.kind), {{"_", "-"}}), "s");
  if (from == kNoNode) return text;
  absl::StrAppend(&text, gather ? " first read in " : " of what is computed in ", place(from));
  if (place(to) != place(from)) absl::StrAppend(&text, " to ", place(to));
  return text;
}

Prediction BucketStories::StepWith(BucketId b, Bucket other) const {
  Plan plan = plan_;
  plan.buckets[Index(b)] = std::move(other);
  return Simulate(graph_, plan, costs_).prediction;
}

Prediction BucketStories::StepWithout(BucketId b) const {
  Plan plan = plan_;
  plan.order.clear();
  for (const Step& step : plan_.order) {
    if (step.kind == Step::Kind::kNode || step.id != b) {
      Step kept = step;
      if (step.kind != Step::Kind::kNode && step.id > b) --kept.id;
      plan.order.push_back(kept);
      continue;
    }
    for (const NodeId member : plan_.buckets[Index(b)].members) {
      const NodeId wait = graph_.collective(graph_.collective_of(member)).wait;
      plan.order.push_back({Step::Kind::kNode, step.kind == Step::Kind::kStart ? member : wait});
    }
  }
  plan.buckets.erase(plan.buckets.begin() + b);
  return Simulate(graph_, plan, costs_).prediction;
}

std::string BucketStories::Form(BucketId b) const {
  const Bucket& bucket = plan_.buckets[Index(b)];
  int64_t alone_ps = 0, copies_ps = 0, wire_ps = 0;
  for (const NodeId member : bucket.members) alone_ps += costs_.node_ps(member);
  for (const TimelineEvent& event : simulation_.events) {
    if (event.bucket != b || event.kind == TimelineEvent::Kind::kStall) continue;
    (event.kind == TimelineEvent::Kind::kCollective ? wire_ps : copies_ps) +=
        event.end_ps - event.start_ps;
  }
  std::string text =
      absl::StrCat(ctl::Form(bucket), ": one latency instead of ", bucket.members.size(), ", ",
                   ShownChange(wire_ps - alone_ps), " on the wire");
  if (copies_ps > 0) absl::StrAppend(&text, ", copies take ", Us(copies_ps));
  const Prediction& now = simulation_.prediction;
  std::vector<std::string> others;
  const auto other = [&](absl::string_view what, const Prediction& step) {
    others.push_back(absl::StrCat(what, " ", ShownChange(step.total_ps - now.total_ps)));
    if (step.total_ps < now.total_ps && step.peak_bytes > now.peak_bytes) {
      absl::StrAppend(&others.back(), " at ", Mib(step.peak_bytes - now.peak_bytes),
                      " more peak memory");
    }
  };
  constexpr std::pair<BucketMode, CopyStream> kForms[] = {
      {BucketMode::kGrouped, CopyStream::kCompute},
      {BucketMode::kPacked, CopyStream::kCompute},
      {BucketMode::kPacked, CopyStream::kComm}};
  for (const auto& [mode, copies] : kForms) {
    Bucket form = bucket;
    form.mode = mode;
    form.copies = copies;
    if (ctl::Form(form) != ctl::Form(bucket)) other(ctl::Form(form), StepWith(b, form));
  }
  other("each by itself", StepWithout(b));
  for (size_t i = 0; i < others.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "; the step would take, " : ", ", others[i]);
  }
  return text;
}

std::string BucketStories::Start(BucketId b) const {
  const Place& place = places_[Index(b)];
  const WireTime& wire = simulation_.bucket_wire[Index(b)];
  std::string text = absl::StrCat("begins at ", Us(wire.start_ps));
  if (wire.start_ps == 0) {
    absl::StrAppend(&text, ", with the step");
  } else if (place.free_ps == wire.start_ps) {
    absl::StrAppend(&text, ", when its wire is free");
  } else if (place.ready_ps >= place.launched_ps) {
    absl::StrAppend(&text, ", as soon as what it sends is computed");
  } else {
    absl::StrAppend(&text, ", ", Us(wire.start_ps - std::max(place.free_ps, place.ready_ps)),
                    " later than its wire and what it sends would allow");
  }
  const int64_t early = place.waited_ps - wire.end_ps;
  if (early >= 0) {
    absl::StrAppend(&text, ", and ends ", Us(early), " before the step waits for it");
  } else {
    absl::StrAppend(&text, "; the step waits ", Us(-early), " for it");
  }
  return text;
}

bool BucketStories::SameKey(BucketId a, BucketId b) const {
  const Collective &x = First(a), &y = First(b);
  return x.kind == y.kind && x.group == y.group && x.reduce_op == y.reduce_op && x.dtype == y.dtype;
}

std::string BucketStories::Larger(BucketId b) const {
  const Place& place = places_[Index(b)];
  BucketId next = -1;
  for (BucketId k = 0; Index(k) < places_.size(); ++k) {
    if (places_[Index(k)].start <= place.start || !SameKey(b, k)) continue;
    if (next < 0 || places_[Index(k)].start < places_[Index(next)].start) next = k;
  }
  if (next < 0) return "the last bucket of its key";
  const WireTime &wire = simulation_.bucket_wire[Index(b)],
                 &other = simulation_.bucket_wire[Index(next)];
  const Place& then = places_[Index(next)];
  const int64_t longer = std::max<int64_t>(
      0, other.end_ps - other.start_ps - costs_.AlphaPs(graph_.collective_of(First(next).start)));
  const std::string text = absl::StrCat("with bucket ", next, " in it, it would ");
  const int64_t later = then.ready_ps - wire.start_ps;
  if (!Gathers(First(b).kind)) {
    if (later <= 0) return absl::StrCat(text, "end ", Us(longer), " later at least");
    return absl::StrCat(text, "begin ", Us(later), " later at least: when all of it is computed");
  }
  const int64_t late = wire.end_ps + longer - place.waited_ps;
  return absl::StrCat(text, "end ", Us(std::abs(late)), late > 0 ? " after" : " before",
                      " the step waits for it, begun at the same time");
}

BucketStory BucketStories::Of(BucketId b) const {
  return {b, Members(b), Form(b), Start(b), Larger(b)};
}

std::string BucketStories::Text(const BucketStory& story) const {
  return absl::StrCat("bucket ", story.bucket, " (", plan_.buckets[Index(story.bucket)].name,
                      "): ", story.members, "\n  ", story.form, "\n  ", story.begins, "; ",
                      story.larger, "\n");
}

std::vector<BucketStory> BucketStories::All() const {
  constexpr size_t kMostSteps = 20'000'000;  // each story simulates the plan three times
  const size_t fit = std::max<size_t>(1, kMostSteps / (3 * plan_.order.size() + 1));
  std::vector<BucketId> which(plan_.buckets.size());
  std::iota(which.begin(), which.end(), 0);
  if (which.size() > fit) {
    const auto held_up = [this](BucketId b) {
      return simulation_.bucket_wire[Index(b)].end_ps - places_[Index(b)].waited_ps;
    };
    std::stable_sort(which.begin(), which.end(),
                     [&](BucketId a, BucketId b) { return held_up(a) > held_up(b); });
    which.resize(fit);
    std::sort(which.begin(), which.end());
  }
  std::vector<BucketStory> stories;
  stories.reserve(which.size());
  for (const BucketId b : which) stories.push_back(Of(b));
  return stories;
}

}  // namespace bucketd::ctl
