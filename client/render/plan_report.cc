#include "client/render/plan_report.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/render/table.h"

namespace bucketd {
namespace {

std::string Mode(const Bucket& bucket) {
  if (bucket.mode == BucketMode::kGrouped) return "grouped";
  return bucket.copies == CopyStream::kComm ? "packed, copies on comm" : "packed";
}

}  // namespace

BucketLine LineOf(const Bucket& bucket, std::string kind, std::string mesh_dim) {
  return {bucket.name,
          std::move(kind),
          std::move(mesh_dim),
          Mode(bucket),
          static_cast<int64_t>(bucket.members.size()),
          bucket.bytes,
          bucket.end_ps - bucket.start_ps};
}

std::vector<BucketLine> DescribeBuckets(const Graph& graph, const Plan& plan) {
  std::vector<BucketLine> lines;
  for (const Bucket& bucket : plan.buckets) {
    const Collective& c = graph.collective(graph.collective_of(bucket.members.front()));
    lines.push_back(LineOf(bucket, std::string(Name(c.kind)), graph.group(c).mesh_dim));
  }
  return lines;
}

std::string BucketTable(absl::Span<const BucketLine> buckets) {
  if (buckets.empty()) return "no buckets: every collective runs by itself\n";
  Table table("rlllrrlr",
              {"#", "bucket", "kind", "mesh dim", "members", "bytes", "mode", "on the wire"});
  BucketLine all;
  for (size_t k = 0; k < buckets.size(); ++k) {
    const BucketLine& b = buckets[k];
    table.AddRow({absl::StrCat(k), b.name, absl::StrReplaceAll(b.kind, {{"_", "-"}}), b.mesh_dim,
                  absl::StrCat(b.members), Mib(b.bytes), b.mode, Duration(b.wire_ps)});
    all.members += b.members;
    all.bytes += b.bytes;
    all.wire_ps += b.wire_ps;
  }
  table.AddRow(
      {"", "all", "", "", absl::StrCat(all.members), Mib(all.bytes), "", Duration(all.wire_ps)});
  return table.Text();
}

std::string HowMade(const Plan& plan, absl::string_view cost_profile) {
  return absl::StrCat("mode ", plan.mode, ", numerics ", Name(plan.numerics), " on ", plan.backend,
                      ", cost profile ", cost_profile, "\n", plan.bits_text,
                      plan.bits_text.empty() ? "" : "\n");
}

std::string SummaryTable(const Plan& plan) {
  const Prediction& now = plan.prediction;
  const Prediction& before = plan.program_order;
  Table table("lrrr", {"predicted", "planned", "program order", "change"});
  const auto time = [&](const char* what, int64_t a, int64_t b) {
    table.AddRow({what, Duration(a), Duration(b), Change(a, b)});
  };
  time("step time", now.total_ps, before.total_ps);
  time("exposed communication", now.exposed_ps, before.exposed_ps);
  time("communication", now.comm_ps, before.comm_ps);
  time("copies", now.copies_ps, before.copies_ps);
  table.AddRow({"peak memory", Mib(now.peak_bytes), Mib(before.peak_bytes),
                Change(now.peak_bytes, before.peak_bytes)});
  table.AddRow({"collectives", absl::StrCat(now.collectives), absl::StrCat(before.collectives),
                Change(now.collectives, before.collectives)});
  if (plan.lower_bound_ps > 0) {
    table.AddRow({"referee's lower bound", Duration(plan.lower_bound_ps), "",
                  absl::StrFormat("step = %.3f x", Ratio(now.total_ps, plan.lower_bound_ps))});
  }
  return table.Text();
}

std::string Shortened(absl::string_view diagnostic) {
  constexpr size_t kMost = 400;
  const size_t end =
      diagnostic.size() > kMost ? diagnostic.rfind("; ", kMost) : absl::string_view::npos;
  if (end == absl::string_view::npos) return std::string(diagnostic);
  return absl::StrCat(diagnostic.substr(0, end), "; ... (--json, or the plan's file, has all)");
}

std::string DiagnosticLines(const Plan& plan) {
  constexpr int kMaxOfACode = 3;
  std::map<absl::string_view, int> count;
  std::string text;
  for (const Diagnostic& d : plan.diagnostics) {
    if (absl::StartsWith(d.code, "auto-")) continue;  // figures: StandingText() has them
    if (++count[d.code] <= kMaxOfACode)
      absl::StrAppend(&text, d.code, ": ", Shortened(d.text), "\n");
  }
  for (const auto& [code, times] : count) {
    if (times <= kMaxOfACode) continue;
    absl::StrAppend(&text, code, ": and ", times - kMaxOfACode,
                    " more (bucketctl explain, or the plan's file)\n");
  }
  return text;
}

}  // namespace bucketd
