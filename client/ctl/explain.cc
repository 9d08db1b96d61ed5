#include "client/ctl/explain.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/render/plan_report.h"
#include "client/render/table.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/pass/numerics.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"

namespace bucketd::ctl {
namespace {

std::vector<NodeId> Sorted(std::vector<NodeId> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string Kind(CollectiveKind kind) { return absl::StrReplaceAll(Name(kind), {{"_", "-"}}); }

std::string Lines(const std::vector<std::string>& lines) {
  return absl::StrJoin(lines, "", [](std::string* out, const std::string& line) {
    absl::StrAppend(out, "  - ", line, "\n");
  });
}

// Kernels that run while a bucket is on the wire: how many, and in which modules.
class Beside {
 public:
  Beside(const Graph& graph, const Simulation& simulation) : graph_(graph) {
    for (const TimelineEvent& event : simulation.events) {
      if (event.kind == TimelineEvent::Kind::kCompute) kernels_.push_back(&event);
    }
  }
  std::string Text(const WireTime& wire) const {
    auto it = std::partition_point(kernels_.begin(), kernels_.end(), [&](const TimelineEvent* e) {
      return e->end_ps <= wire.start_ps;
    });
    int64_t count = 0;
    NodeId first = kNoNode, last = kNoNode;
    for (; it != kernels_.end() && (*it)->start_ps < wire.end_ps; ++it, ++count) {
      if (first == kNoNode) first = (*it)->node;
      last = (*it)->node;
    }
    if (count == 0) return "nothing";
    const std::string from = Place(first), to = Place(last);
    return absl::StrCat(count, count == 1 ? " kernel: " : " kernels: ", from,
                        from == to ? "" : " to ", from == to ? "" : to);
  }

 private:
  std::string Place(NodeId n) const {
    const absl::string_view module = graph_.module(n);
    return module.empty() ? graph_.Describe(n) : std::string(module);
  }
  const Graph& graph_;
  std::vector<const TimelineEvent*> kernels_;  // in order of time
};

}  // namespace

Explainer::Explainer(const Graph& graph, const Plan& plan, const Costs& costs)
    : graph_(graph), plan_(plan), costs_(costs), bucket_of_(graph.collectives().size(), -1) {
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const NodeId member : plan.buckets[b].members) {
      bucket_of_[Index(graph.collective_of(member))] = static_cast<BucketId>(b);
    }
  }
  std::vector<Diagnostic> unused;
  tags_ = ResolveTags(graph, unused);
  directions_ = CollectiveDirections(graph);
}

absl::StatusOr<Explainer> Explainer::Make(const Graph& graph, const Plan& plan,
                                          const Costs& costs) {
  Explainer explainer(graph, plan, costs);
  ASSIGN_OR_RETURN(explainer.constraints_, FindConstraints(graph));
  return explainer;
}

absl::StatusOr<CollectiveId> Explainer::Find(const std::string& name) const {
  absl::string_view text = name;
  int32_t number = -1;
  if (absl::ConsumePrefix(&text, "bucket:")) {
    if (absl::SimpleAtoi(text, &number) && number >= 0 && Index(number) < plan_.buckets.size()) {
      return graph_.collective_of(plan_.buckets[Index(number)].members.front());
    }
    if (plan_.buckets.empty()) return absl::OutOfRangeError(name + ": the plan has no buckets");
    return absl::OutOfRangeError(
        absl::StrCat(name, ": the plan has buckets 0 to ", plan_.buckets.size() - 1));
  }
  absl::ConsumePrefix(&text, "%");
  if (absl::SimpleAtoi(text, &number)) {
    if (number >= 0 && number < graph_.size() && graph_.collective_of(number) >= 0) {
      return graph_.collective_of(number);
    }
    return absl::OutOfRangeError(absl::StrCat(name, ": no collective of this graph"));
  }
  std::vector<CollectiveId> found;
  for (CollectiveId c = 0; Index(c) < graph_.collectives().size(); ++c) {
    const Collective& collective = graph_.collective(c);
    if (graph_.node_name(collective.start) == name) return c;
    if (tags_[c].parameter == name) found.push_back(c);
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) {
    return absl::OutOfRangeError(
        absl::StrCat(name, ": no collective and no parameter of this graph is called so"));
  }
  return absl::OutOfRangeError(
      absl::StrCat(name, " has ", found.size(), " collectives; name one of them: ",
                   absl::StrJoin(found, ", ", [this](std::string* out, CollectiveId c) {
                     absl::StrAppend(out, graph_.Describe(graph_.collective(c).start));
                   })));
}

std::string Explainer::Describe(CollectiveId c) const {
  const Collective& collective = graph_.collective(c);
  const Group& group = graph_.group(collective);
  std::string text = absl::StrCat(graph_.Describe(collective.start), ": ", Kind(collective.kind),
                                  " of ", Mib(collective.bytes), " ", Name(collective.dtype),
                                  " over ", group.mesh_dim, " (", group.size, " ranks");
  if (group.lane != 0) absl::StrAppend(&text, ", lane ", group.lane);
  absl::StrAppend(&text, ")");
  if (!tags_[c].parameter.empty()) absl::StrAppend(&text, " for ", tags_[c].parameter);
  if (directions_[Index(c)] != Direction::kNone) {
    absl::StrAppend(&text, ", ", Name(directions_[Index(c)]));
  }
  return text;
}

std::string Explainer::BucketName(BucketId b) const {
  return absl::StrCat("bucket ", b, " (", plan_.buckets[Index(b)].name, ", ",
                      plan_.buckets[Index(b)].members.size(), " members)");
}

std::vector<std::string> Explainer::Notes(CollectiveId c) const {
  const BucketId b = BucketOf(c);
  std::vector<std::string> notes;
  for (const Diagnostic& d : plan_.diagnostics) {
    const bool named = std::any_of(d.nodes.begin(), d.nodes.end(), [&](NodeId n) {
      const CollectiveId of = graph_.collective_of(n);
      return of == c || (of >= 0 && b >= 0 && BucketOf(of) == b);
    });
    if (named) notes.push_back(absl::StrCat("the planner: ", d.code, ": ", Shortened(d.text)));
  }
  return notes;
}

std::vector<std::string> Explainer::NeverMerged(CollectiveId c) const {
  const Collective& collective = graph_.collective(c);
  std::vector<std::string> reasons;
  const auto add = [&](const auto&... parts) { reasons.push_back(absl::StrCat(parts...)); };
  if (!Bucketable(collective.kind)) {
    add("collectives of kind ", Kind(collective.kind), " are never merged");
  }
  if (collective.wait == kNoNode) add("nobody waits for it");
  if (collective.symbolic) add("its size changes from step to step");
  if (graph_.outputs(collective.start).size() != 1) add("it has several outputs");
  if (constraints_.pinned[Index(c)]) {
    add("it reads or makes storage that an in-place op writes, or is kept in order itself");
  }
  PlanOptions options;
  options.numerics = plan_.numerics;
  options.backend = plan_.backend;
  if (Reduces(collective.kind) && !collective.symbolic && !MayMerge(graph_, c, tags_, options)) {
    add("numerics ", Name(plan_.numerics), " on ", plan_.backend, " leaves this ",
        Kind(collective.kind), " alone, since merging changes the order of sums");
  }
  return reasons;
}

std::vector<NodeId> Explainer::Path(NodeId from, NodeId to) const {
  std::vector<NodeId> next(Index(to) + 1, kNoNode);
  std::vector<NodeId> open = {to};
  const auto visit = [&](NodeId x, NodeId by) {
    if (x < from || x == to || next[Index(x)] != kNoNode) return;
    next[Index(x)] = by;
    open.push_back(x);
  };
  const std::vector<Constraints::Edge>& edges = constraints_.edges;
  for (size_t i = 0; i < open.size() && next[Index(from)] == kNoNode; ++i) {
    const NodeId n = open[i];
    for (const NodeId x : graph_.inputs(n)) visit(x, n);
    auto edge =
        std::lower_bound(edges.begin(), edges.end(), n,
                         [](const Constraints::Edge& e, NodeId at) { return e.after < at; });
    for (; edge != edges.end() && edge->after == n; ++edge) visit(edge->before, n);
  }
  std::vector<NodeId> path;
  if (from == to || next[Index(from)] == kNoNode) return path;
  for (NodeId n = from; n != kNoNode; n = n == to ? kNoNode : next[Index(n)]) path.push_back(n);
  return path;
}

std::string Explainer::PathText(const std::vector<NodeId>& path) const {
  constexpr size_t kEnds = 3;
  std::vector<std::string> names;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path.size() > 2 * kEnds + 1 && i == kEnds) {
      names.push_back(absl::StrCat("(", path.size() - 2 * kEnds, " more)"));
      i = path.size() - kEnds;
    }
    names.push_back(graph_.Describe(path[i]));
  }
  return absl::StrJoin(names, " -> ");
}

std::vector<std::string> Explainer::Forbidden(CollectiveId a, CollectiveId b) const {
  const Collective &x = graph_.collective(a), &y = graph_.collective(b);
  std::vector<std::string> reasons;
  const auto differ = [&](const char* what, std::string p, std::string q) {
    if (p != q) reasons.push_back(absl::StrCat("they differ in ", what, ": ", p, " and ", q));
  };
  const auto group = [this](const Collective& c) {
    return absl::StrCat(graph_.group(c).mesh_dim, " lane ", graph_.group(c).lane);
  };
  differ("kind", Kind(x.kind), Kind(y.kind));
  differ("process group", group(x), group(y));
  differ("reduce op", std::string(Name(x.reduce_op)), std::string(Name(y.reduce_op)));
  differ("dtype", std::string(Name(x.dtype)), std::string(Name(y.dtype)));
  differ("direction", std::string(Name(directions_[Index(a)])),
         std::string(Name(directions_[Index(b)])));
  for (const CollectiveId c : {a, b}) {
    for (const std::string& reason : NeverMerged(c)) {
      reasons.push_back(absl::StrCat(graph_.Describe(graph_.collective(c).start), ": ", reason));
    }
  }
  const std::vector<NodeId> path = Path(std::min(x.start, y.start), std::max(x.start, y.start));
  if (!path.empty()) {
    reasons.push_back(absl::StrCat("one depends on the other: ", PathText(path)));
  }
  return reasons;
}

std::vector<BucketFacts> Explainer::Facts() const {
  const Simulation simulation = Simulate(graph_, plan_, costs_, /*with_timeline=*/true);
  std::vector<BucketFacts> facts(plan_.buckets.size());
  for (const TimelineEvent& event : simulation.events) {
    if (event.bucket < 0) continue;
    BucketFacts& of = facts[Index(event.bucket)];
    const int64_t took = event.end_ps - event.start_ps;
    if (event.kind == TimelineEvent::Kind::kStall) of.exposed_ps += took;
    if (event.kind == TimelineEvent::Kind::kCollective) of.wire_ps += took;
  }
  std::map<std::vector<NodeId>, std::string> closed;
  for (const Diagnostic& d : plan_.diagnostics) {
    if (d.code == "bucket-closed") closed[Sorted(d.nodes)] = d.text;
  }
  const Beside beside(graph_, simulation);
  const bool by_units = plan_.mode == "transformer_block" || plan_.mode == "manual";
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    const WireTime& wire = simulation.bucket_wire[b];
    const auto reason = closed.find(Sorted(bucket.members));
    facts[b].kind = graph_.collective(graph_.collective_of(bucket.members[0])).kind;
    facts[b].beside = beside.Text(wire);
    facts[b].ends = reason != closed.end() ? reason->second : by_units ? "its unit ends" : "";
  }
  return facts;
}

std::string Explainer::Buckets(const std::vector<BucketFacts>& facts) const {
  if (graph_.collectives().empty()) return "the graph has no collectives\n";
  if (facts.empty()) return "no buckets: every collective runs by itself\n";
  std::vector<std::string> titles = {"#",     "bucket",      "kind",    "members",
                                     "bytes", "on the wire", "exposed", "runs beside"};
  const bool ends = std::any_of(facts.begin(), facts.end(),
                                [](const BucketFacts& bucket) { return !bucket.ends.empty(); });
  if (ends) titles.push_back("ends because");
  Table table(ends ? "rllrrrrll" : "rllrrrrl", std::move(titles));
  for (size_t b = 0; b < facts.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    std::vector<std::string> row = {absl::StrCat(b),
                                    bucket.name,
                                    Kind(facts[b].kind),
                                    absl::StrCat(bucket.members.size()),
                                    Mib(bucket.bytes),
                                    Duration(facts[b].wire_ps),
                                    Duration(facts[b].exposed_ps),
                                    facts[b].beside};
    if (ends) row.push_back(facts[b].ends);
    table.AddRow(std::move(row));
  }
  return table.Text();
}

std::vector<AloneGroup> Explainer::Alone() const {
  std::set<NodeId> uncovered;  // as the mode said that found the units
  for (const Diagnostic& said : plan_.diagnostics) {
    if (said.code == "uncovered-collective") uncovered.insert(said.nodes.begin(), said.nodes.end());
  }
  std::map<std::string, AloneGroup> by_reason;
  for (CollectiveId c = 0; Index(c) < bucket_of_.size(); ++c) {
    if (BucketOf(c) >= 0) continue;
    const std::vector<std::string> never = NeverMerged(c);
    std::string reason = never.empty() ? "" : never[0];
    if (reason.empty() && tags_[c].tag == Tag::kNone) {
      reason = "it moves no parameter and no gradient";
    }
    if (reason.empty() && uncovered.contains(graph_.collective(c).start)) {
      reason = plan_.mode == "manual" ? "no entry of buckets holds it" : "no block holds it";
    }
    if (reason.empty()) reason = "no partner of its key in reach (explain it by name)";
    AloneGroup& group = by_reason[reason];
    if (group.count++ == 0) group.example = graph_.Describe(graph_.collective(c).start);
    group.why = std::move(reason);
  }
  std::vector<AloneGroup> groups;
  for (auto& [reason, group] : by_reason) groups.push_back(std::move(group));
  return groups;
}

std::string AloneText(const std::vector<AloneGroup>& groups) {
  return absl::StrJoin(groups, "", [](std::string* out, const AloneGroup& group) {
    absl::StrAppend(out, group.count, group.count == 1 ? " stays" : " stay", " alone: ", group.why,
                    group.count == 1 ? ": " : "; for example ", group.example, "\n");
  });
}

Json AloneJson(const std::vector<AloneGroup>& groups) {
  return Json::List(groups, [](const AloneGroup& group) {
    return Json::Object({{"count", group.count}, {"why", group.why}, {"example", group.example}});
  });
}

std::string Explainer::One(CollectiveId c) const {
  std::string text = absl::StrCat(Describe(c), "\n");
  std::vector<std::string> lines;
  if (BucketOf(c) >= 0) {
    const Bucket& bucket = plan_.buckets[Index(BucketOf(c))];
    lines.push_back(
        absl::StrCat("is in ", BucketName(BucketOf(c)), " with ",
                     absl::StrJoin(bucket.members, ", ", [this](std::string* out, NodeId n) {
                       absl::StrAppend(out, graph_.Describe(n));
                     })));
  } else {
    lines.push_back("is in no bucket");
    for (const std::string& reason : NeverMerged(c)) lines.push_back(reason);
    if (tags_[c].tag == Tag::kNone) {
      lines.push_back("it moves no parameter and no gradient, as far as tags and structure say");
    }
  }
  for (const std::string& note : Notes(c)) lines.push_back(note);
  return absl::StrCat(text, Lines(lines));
}

Bucket Explainer::Merged(CollectiveId a, CollectiveId b) const {
  Bucket both;
  for (const CollectiveId c : {a, b}) {
    if (BucketOf(c) < 0) {
      both.members.push_back(graph_.collective(c).start);
      continue;
    }
    const Bucket& bucket = plan_.buckets[Index(BucketOf(c))];
    both.members.insert(both.members.end(), bucket.members.begin(), bucket.members.end());
    both.mode = bucket.mode;
  }
  LayOut(graph_, both);
  return both;
}

std::string Explainer::Together(CollectiveId a, CollectiveId b) const {
  // Both buckets or collectives become the last bucket of a changed plan; its start and wait go to
  // the four places that the old ones leave.
  Plan merged = plan_;
  const auto belongs = [&](const Step& step) {
    if (step.kind == Step::Kind::kNode) {
      const CollectiveId c = graph_.collective_of(step.id);
      return (c == a && BucketOf(a) < 0) || (c == b && BucketOf(b) < 0);
    }
    return step.id == BucketOf(a) || step.id == BucketOf(b);
  };
  const auto is_start = [&](const Step& step) {
    return step.kind == Step::Kind::kStart ||
           (step.kind == Step::Kind::kNode && graph_.kind(step.id) == NodeKind::kCollective);
  };
  std::vector<size_t> starts, waits;
  for (size_t i = 0; i < plan_.order.size(); ++i) {
    if (belongs(plan_.order[i])) (is_start(plan_.order[i]) ? starts : waits).push_back(i);
  }
  // The new bucket takes the number of one that goes, or a new one; an emptied one is dropped.
  std::vector<BucketId> number(plan_.buckets.size());
  merged.buckets.clear();
  for (size_t k = 0; k < plan_.buckets.size(); ++k) {
    number[k] = static_cast<BucketId>(merged.buckets.size());
    const auto id = static_cast<BucketId>(k);
    if (id != BucketOf(a) && id != BucketOf(b)) merged.buckets.push_back(plan_.buckets[k]);
  }
  const auto joint = static_cast<BucketId>(merged.buckets.size());
  merged.buckets.push_back(Merged(a, b));
  const auto order_with = [&](size_t start, size_t wait) {
    std::vector<Step> order;
    for (size_t i = 0; i < plan_.order.size(); ++i) {
      if (i == start) order.push_back({Step::Kind::kStart, joint});
      if (i == wait) order.push_back({Step::Kind::kWait, joint});
      if (belongs(plan_.order[i])) continue;
      Step step = plan_.order[i];
      if (step.kind != Step::Kind::kNode) step.id = number[Index(step.id)];
      order.push_back(step);
    }
    return order;
  };
  return BestOf(std::move(merged), order_with, starts, waits);
}

std::string Explainer::BestOf(Plan merged,
                              absl::FunctionRef<std::vector<Step>(size_t start, size_t wait)> order,
                              const std::vector<size_t>& starts,
                              const std::vector<size_t>& waits) const {
  const Prediction now = Simulate(graph_, plan_, costs_).prediction;
  std::string best;
  int64_t best_total = 0;
  for (const size_t start : starts) {
    for (const size_t wait : waits) {
      merged.order = order(start, wait);
      if (!VerifyPlan(graph_, merged).ok()) continue;
      const Prediction p = Simulate(graph_, merged, costs_).prediction;
      if (!best.empty() && p.total_ps >= best_total) continue;
      best_total = p.total_ps;
      best = absl::StrFormat(
          "in one bucket (start at step %d, wait at step %d) the step would take %s instead of %s, "
          "copies %s instead of %s, peak memory %s instead of %s",
          start, wait, Duration(p.total_ps), Duration(now.total_ps), Duration(p.copies_ps),
          Duration(now.copies_ps), Mib(p.peak_bytes), Mib(now.peak_bytes));
    }
  }
  if (best.empty()) {
    return "where they start and are waited for now, no place serves both: other steps would have "
           "to move";
  }
  if (plan_.mode == "auto" && best_total < now.total_ps) {
    absl::StrAppend(&best, "; the search gives up such gains where a plan fares better with ",
                    "perturbed costs");
  }
  return best;
}

std::string Explainer::Two(CollectiveId a, CollectiveId b) const {
  std::string text = absl::StrCat("A  ", Describe(a), "\nB  ", Describe(b), "\n");
  if (a == b) return absl::StrCat(text, "are the same collective\n");
  if (BucketOf(a) >= 0 && BucketOf(a) == BucketOf(b)) {
    return absl::StrCat(text, "share ", BucketName(BucketOf(a)), "\n", Lines(Notes(a)));
  }
  const std::vector<std::string> forbidden = Forbidden(a, b);
  if (!forbidden.empty()) {
    return absl::StrCat(text, "cannot share a bucket:\n", Lines(forbidden));
  }
  std::vector<std::string> lines;
  for (const CollectiveId c : {a, b}) {
    lines.push_back(absl::StrCat(c == a ? "A" : "B", " is in ",
                                 BucketOf(c) < 0 ? "no bucket" : BucketName(BucketOf(c))));
    for (const std::string& note : Notes(c)) lines.push_back(note);
  }
  lines.push_back(Together(a, b));
  return absl::StrCat(text, "could share a bucket, and mode ", plan_.mode,
                      " does not put them into one:\n", Lines(lines));
}

}  // namespace bucketd::ctl
