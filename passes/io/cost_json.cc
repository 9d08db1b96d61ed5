#include "passes/io/cost_json.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/io/json_fields.h"

namespace bucketd {
namespace {

using internal::CheckObject;
using internal::Members;
using internal::Quoted;
using internal::WrongType;
using nlohmann::json;

constexpr size_t kMaxSamples = 1'000'000;

template <typename Enum>
absl::Status ReadWord(const Members& members, const char* name, const char* example, Enum& value) {
  std::string text;
  RETURN_IF_ERROR(members.Text(name, true, text));
  if (FromName(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(members.Place(name), ": ", Quoted(text),
                                                 " is unknown; expected e.g. ", example));
}

absl::Status ReadClass(const Members& members, LinkClass& of) {
  RETURN_IF_ERROR(ReadWord(members, "kind", "all_gather", of.kind));
  RETURN_IF_ERROR(ReadWord(members, "dtype", "bf16", of.dtype));
  RETURN_IF_ERROR(members.Text("link_class", false, of.link_class));
  RETURN_IF_ERROR(members.Integer("group_size", true, of.group_size));
  RETURN_IF_ERROR(members.Integer("ranks_per_node", false, of.ranks_per_node));
  of.ranks_per_node = RanksPerNode(of.group_size, of.ranks_per_node);
  return absl::OkStatus();
}

absl::StatusOr<MeasuredLink> ReadLink(const json& value, const std::string& where) {
  RETURN_IF_ERROR(CheckObject(value, where,
                              {"kind", "dtype", "link_class", "group_size", "ranks_per_node",
                               "alpha_us", "busbw_bytes_per_s", "samples", "reporters", "error"}));
  const Members members(value, where);
  MeasuredLink link;
  RETURN_IF_ERROR(ReadClass(members, link.of));
  RETURN_IF_ERROR(members.Number("alpha_us", true, link.alpha_us));
  RETURN_IF_ERROR(members.Number("busbw_bytes_per_s", true, link.busbw_bytes_per_s));
  RETURN_IF_ERROR(members.Integer("samples", false, link.samples));
  RETURN_IF_ERROR(members.Integer("reporters", false, link.reporters));
  RETURN_IF_ERROR(members.Number("error", false, link.error));
  return link;
}

absl::StatusOr<CollectiveSample> ReadSample(const json& value, const std::string& where) {
  RETURN_IF_ERROR(CheckObject(value, where,
                              {"kind", "dtype", "link_class", "group_size", "ranks_per_node",
                               "mesh_dim", "mode", "launches", "bytes", "picoseconds"}));
  const Members members(value, where);
  CollectiveSample sample;
  RETURN_IF_ERROR(ReadClass(members, sample.of));
  RETURN_IF_ERROR(members.Text("mesh_dim", false, sample.mesh_dim));
  std::string mode;
  RETURN_IF_ERROR(members.Text("mode", false, mode));
  RETURN_IF_ERROR(members.Integer("launches", false, sample.launches));
  RETURN_IF_ERROR(members.Integer("bytes", true, sample.bytes));
  RETURN_IF_ERROR(members.Integer("picoseconds", true, sample.picoseconds));
  sample.packed = mode == "packed";
  if (!mode.empty() && !sample.packed && mode != "grouped") {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ".mode: ", Quoted(mode), " is unknown; expected packed or grouped"));
  }
  const absl::Status valid = Validate(sample);
  if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat(where, ".", valid.message()));
  return sample;
}

}  // namespace

absl::StatusOr<CostReport> CostReportFromJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const json object, internal::ParseObject(text, "cost report"));
  RETURN_IF_ERROR(CheckObject(object, "cost report",
                              {"profile", "reporter", "job", "tool", "device", "samples"}));
  const Members members(object, "cost report");
  CostReport report;
  RETURN_IF_ERROR(members.Text("profile", true, report.profile));
  RETURN_IF_ERROR(members.Text("reporter", true, report.by.reporter));
  RETURN_IF_ERROR(members.Text("job", false, report.by.job));
  RETURN_IF_ERROR(members.Text("tool", false, report.by.tool));
  RETURN_IF_ERROR(members.Text("device", false, report.by.device));
  const json* samples = members.Find("samples");
  if (samples == nullptr) return absl::InvalidArgumentError("cost report.samples: missing");
  if (!samples->is_array()) return WrongType("cost report.samples", "an array", *samples);
  if (samples->size() > kMaxSamples) {
    return absl::InvalidArgumentError(absl::StrCat("cost report.samples: ", samples->size(),
                                                   " of them, expected at most ", kMaxSamples));
  }
  for (size_t i = 0; i < samples->size(); ++i) {
    ASSIGN_OR_RETURN(CollectiveSample sample,
                     ReadSample((*samples)[i], absl::StrCat("samples[", i, "]")));
    report.samples.push_back(std::move(sample));
  }
  return report;
}

namespace internal {

absl::StatusOr<std::vector<MeasuredLink>> LinksFromJson(const json& value) {
  if (!value.is_array()) return WrongType("links", "an array", value);
  std::vector<MeasuredLink> links;
  for (size_t i = 0; i < value.size(); ++i) {
    ASSIGN_OR_RETURN(MeasuredLink link, ReadLink(value[i], absl::StrCat("links[", i, "]")));
    links.push_back(std::move(link));
  }
  // Files are written by hand too; the order is nothing that a person should have to know.
  absl::c_sort(links, [](const MeasuredLink& a, const MeasuredLink& b) { return a.of < b.of; });
  return links;
}

absl::StatusOr<std::vector<MeasuredKernel>> KernelsFromJson(const json& value) {
  if (!value.is_array()) return WrongType("kernels", "an array", value);
  if (value.size() > kMaxMeasuredKernels) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernels: ", value.size(), " rows, expected at most ", kMaxMeasuredKernels));
  }
  std::vector<MeasuredKernel> kernels;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = absl::StrCat("kernels[", i, "]");
    RETURN_IF_ERROR(CheckObject(value[i], where, {"signature", "op", "us", "samples"}));
    const Members members(value[i], where);
    MeasuredKernel& kernel = kernels.emplace_back();
    RETURN_IF_ERROR(members.Text("signature", true, kernel.signature));
    RETURN_IF_ERROR(members.Text("op", false, kernel.op));
    RETURN_IF_ERROR(members.Number("us", true, kernel.us));
    RETURN_IF_ERROR(members.Integer("samples", false, kernel.samples));
  }
  absl::c_sort(kernels, [](const MeasuredKernel& a, const MeasuredKernel& b) {
    return a.signature < b.signature;
  });
  return kernels;
}

std::string KernelsJson(absl::Span<const MeasuredKernel> kernels) {
  if (kernels.empty()) return "";
  const auto row = [](std::string* out, const MeasuredKernel& kernel) {
    absl::StrAppend(out, "{\"signature\": ", Quoted(kernel.signature),
                    ", \"op\": ", Quoted(kernel.op), ", \"us\": ", json(kernel.us).dump(),
                    ", \"samples\": ", kernel.samples, "}");
  };
  return absl::StrCat(" \"kernels\": [", absl::StrJoin(kernels, ",\n  ", row), "],\n");
}

std::string LinksJson(absl::Span<const MeasuredLink> links) {
  if (links.empty()) return "";
  const auto number = [](double value) { return json(value).dump(); };
  const auto row = [&](std::string* out, const MeasuredLink& link) {
    absl::StrAppend(
        out, "{\"kind\": ", Quoted(Name(link.of.kind)),
        ", \"dtype\": ", Quoted(Name(link.of.dtype)),
        ", \"link_class\": ", Quoted(link.of.link_class), ", \"group_size\": ", link.of.group_size,
        ", \"ranks_per_node\": ", link.of.ranks_per_node, ", \"alpha_us\": ", number(link.alpha_us),
        ", \"busbw_bytes_per_s\": ", number(link.busbw_bytes_per_s),
        ", \"samples\": ", link.samples, ", \"reporters\": ", link.reporters,
        ", \"error\": ", number(link.error), "}");
  };
  return absl::StrCat(" \"links\": [", absl::StrJoin(links, ",\n  ", row), "],\n");
}

}  // namespace internal
}  // namespace bucketd
