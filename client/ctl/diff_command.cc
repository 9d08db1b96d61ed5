#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/command.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/io/plan_file.h"

namespace bucketd::ctl {
namespace {

struct DiffArgs {
  std::string a, b, graph;
  bool json = false;
};

struct Line {
  std::string what, a, b;
};

std::vector<Line> Headers(const Plan& a, const Plan& b) {
  std::vector<Line> lines = {
      {"graph", ToHex(a.graph_digest), ToHex(b.graph_digest)},
      {"nodes", absl::StrCat(a.node_count), absl::StrCat(b.node_count)},
      {"mode", a.mode, b.mode},
      {"numerics", std::string(Name(a.numerics)), std::string(Name(b.numerics))},
      {"backend", a.backend, b.backend},
      {"planner", a.planner, b.planner},
      {"cost_profile", a.cost_profile, b.cost_profile},
  };
  std::erase_if(lines, [](const Line& line) { return line.a == line.b; });
  return lines;
}

std::vector<NodeId> Sorted(std::vector<NodeId> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string Form(const Bucket& bucket) {
  return absl::StrCat(Name(bucket.mode), " on ", Name(bucket.copies));
}

std::string Members(const Bucket& bucket, const Graph* graph) {
  constexpr size_t kMaxListed = 6;
  std::vector<std::string> names;
  for (const NodeId n : bucket.members) {
    if (names.size() == kMaxListed) {
      names.push_back(absl::StrCat("and ", bucket.members.size() - kMaxListed, " more"));
      break;
    }
    names.push_back(graph != nullptr ? graph->Describe(n) : absl::StrCat("%", n));
  }
  return absl::StrJoin(names, ", ");
}

// Buckets that are not the same in both.
struct BucketDifference {
  std::string what;  // "only in A", "only in B", "payload order", "form"
  const Bucket* bucket = nullptr;
  std::string detail;
};

std::vector<BucketDifference> Buckets(const Plan& a, const Plan& b) {
  std::map<std::vector<NodeId>, const Bucket*> in_b;
  for (const Bucket& bucket : b.buckets) in_b.emplace(Sorted(bucket.members), &bucket);
  std::vector<BucketDifference> found;
  std::set<const Bucket*> met;
  for (const Bucket& bucket : a.buckets) {
    const auto it = in_b.find(Sorted(bucket.members));
    if (it == in_b.end()) {
      found.push_back({"only in A", &bucket, Form(bucket)});
      continue;
    }
    met.insert(it->second);
    if (bucket.members != it->second->members) found.push_back({"payload order", &bucket, ""});
    if (Form(bucket) != Form(*it->second)) {
      found.push_back({"form", &bucket, absl::StrCat(Form(bucket), " / ", Form(*it->second))});
    }
  }
  for (const Bucket& bucket : b.buckets) {
    if (met.count(&bucket) == 0) found.push_back({"only in B", &bucket, Form(bucket)});
  }
  return found;
}

// Steps by what they do rather than by bucket number, so that plans that number alike buckets
// otherwise compare equal.
std::string StepText(const Plan& plan, const Step& step) {
  if (step.kind == Step::Kind::kNode) return absl::StrCat("%", step.id);
  const Bucket& bucket = plan.buckets[static_cast<size_t>(step.id)];
  return absl::StrCat(step.kind == Step::Kind::kStart ? "start" : "wait", " of [",
                      absl::StrJoin(Sorted(bucket.members), " "), "]");
}

// The first place where the orders differ; -1 if nowhere.
int64_t FirstStep(const Plan& a, const Plan& b) {
  const size_t both = std::min(a.order.size(), b.order.size());
  for (size_t i = 0; i < both; ++i) {
    if (a.order[i].kind == b.order[i].kind && a.order[i].kind == Step::Kind::kNode &&
        a.order[i].id == b.order[i].id) {
      continue;
    }
    if (StepText(a, a.order[i]) != StepText(b, b.order[i])) return static_cast<int64_t>(i);
  }
  return a.order.size() == b.order.size() ? -1 : static_cast<int64_t>(both);
}

std::string Figures(const Plan& a, const Plan& b) {
  Table table("lrrr", {"predicted", "A", "B", "change"});
  const Prediction &x = a.prediction, &y = b.prediction;
  const auto time = [&](const char* what, int64_t p, int64_t q) {
    table.AddRow({what, Duration(p), Duration(q), Change(q, p)});
  };
  time("step time", x.total_ps, y.total_ps);
  time("exposed communication", x.exposed_ps, y.exposed_ps);
  time("copies", x.copies_ps, y.copies_ps);
  table.AddRow(
      {"peak memory", Mib(x.peak_bytes), Mib(y.peak_bytes), Change(y.peak_bytes, x.peak_bytes)});
  table.AddRow({"collectives", absl::StrCat(x.collectives), absl::StrCat(y.collectives),
                Change(y.collectives, x.collectives)});
  return table.Text();
}

std::string StepAt(const Plan& plan, int64_t i) {
  const auto at = static_cast<size_t>(i);
  return at < plan.order.size() ? StepText(plan, plan.order[at]) : "the end";
}

std::string Text(const Plan& a, const Plan& b, const Graph* graph) {
  const std::vector<BucketDifference> buckets = Buckets(a, b);
  std::string text;
  const std::vector<Line> headers = Headers(a, b);
  if (!headers.empty()) {
    Table table("lll", {"field", "A", "B"});
    for (const Line& line : headers) table.AddRow({line.what, line.a, line.b});
    absl::StrAppend(&text, table.Text(), "\n");
  }
  absl::StrAppend(&text, Figures(a, b), "\n");
  if (buckets.empty()) {
    absl::StrAppend(&text, "the same ", a.buckets.size(), " buckets\n");
  } else {
    Table table("llll", {"difference", "bucket", "form", "members"});
    for (const BucketDifference& d : buckets) {
      table.AddRow({d.what, d.bucket->name, d.detail, Members(*d.bucket, graph)});
    }
    absl::StrAppend(&text, table.Text());
  }
  const int64_t step = FirstStep(a, b);
  absl::StrAppend(
      &text, step < 0 ? std::string("the same order\n")
                      : absl::StrCat("the orders part at step ", step, ":\n  A: ", StepAt(a, step),
                                     "\n  B: ", StepAt(b, step), "\n"));
  return text;
}

std::string JsonText(const Plan& a, const Plan& b) {
  const std::vector<BucketDifference> buckets = Buckets(a, b);
  const int64_t step = FirstStep(a, b);
  const std::vector<Line> headers = Headers(a, b);
  const auto field = [](const Line& line) {
    return Json::Object({{"field", line.what}, {"a", line.a}, {"b", line.b}});
  };
  const auto bucket = [](const BucketDifference& d) {
    return Json::Object(
        {{"difference", d.what}, {"members", Json::List(d.bucket->members)}, {"form", d.detail}});
  };
  const std::vector<Json> times = {Json::Us(a.prediction.total_ps),
                                   Json::Us(b.prediction.total_ps)};
  const std::vector<int64_t> peaks = {a.prediction.peak_bytes, b.prediction.peak_bytes};
  return Json::Object({{"equal", headers.empty() && buckets.empty() && step < 0},
                       {"fields", Json::List(headers, field)},
                       {"buckets", Json::List(buckets, bucket)},
                       {"first_step", step < 0 ? Json() : Json(step)},
                       {"total_us", Json::List(times)},
                       {"peak_bytes", Json::List(peaks)}})
      .Text();
}

absl::Status Run(const DiffArgs& args) {
  ASSIGN_OR_RETURN(const PlanFile a, ReadPlanFile(args.a));
  ASSIGN_OR_RETURN(const PlanFile b, ReadPlanFile(args.b));
  std::optional<Input> input;
  if (!args.graph.empty()) {
    ASSIGN_OR_RETURN(input, Load(args.graph, CostFlags{}));
    RETURN_IF_ERROR(CheckPlan(*input, args.a, a.plan));
    RETURN_IF_ERROR(CheckPlan(*input, args.b, b.plan));
  }
  const Graph* const graph = input.has_value() ? &input->captured.graph : nullptr;
  Print(args.json ? JsonText(a.plan, b.plan) : ForTerminal(Text(a.plan, b.plan, graph)));
  return absl::OkStatus();
}

}  // namespace

void AddDiffCommand(const Command& app) {
  const auto [command, args] =
      app.AddCommand<DiffArgs>("diff", "Show how two plans of one graph differ", Run);
  command.AddOption("a", args.a, "plan file").Required().TypeName("PLAN");
  command.AddOption("b", args.b, "plan file").Required().TypeName("PLAN");
  command.AddOption("--graph", args.graph,
                    "the plans' captured graph: for names, and both have to be legal for it");
  AddJsonFlag(command, args.json);
  command.Footer("Example:\n  bucketctl diff yesterday.json today.json --graph step.bw.json.gz");
}

}  // namespace bucketd::ctl
