#include "passes/io/plan_file.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"
#include "passes/io/json_fields.h"
#include "passes/io/plan_json.h"
#include "passes/io/proto_io.h"
#include "passes/ir/text.h"
#include "proto/plan.pb.h"

namespace bucketd {
namespace {

using nlohmann::json;

constexpr int64_t kMaxPlanFileBytes = int64_t{256} << 20;

std::string TextOf(const json& bucket, const char* key) {
  const json* value = internal::Find(bucket, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

absl::StatusOr<PlanFile> ReadJson(absl::string_view text) {
  PlanFile file;
  ASSIGN_OR_RETURN(file.plan, PlanFromJson(text));
  ASSIGN_OR_RETURN(const json object, internal::ParseObject(text, "plan"));
  const json* buckets = internal::Find(object, "buckets");
  if (buckets == nullptr) return file;
  for (const json& bucket : *buckets) {
    file.stated.push_back({TextOf(bucket, "kind"), TextOf(bucket, "mesh_dim")});
  }
  return file;
}

// Of the wire's enum, which may hold any number; its values are those of passes/base/types.h.
std::string NameOf(v1::CollectiveKind kind) {
  return kind < 0 || kind > 255 ? "?" : std::string(Name(static_cast<CollectiveKind>(kind)));
}

absl::StatusOr<PlanFile> ReadBinary(absl::string_view bytes) {
  PlanFile file;
  ASSIGN_OR_RETURN(file.plan, ParsePlan(bytes));
  v1::Plan message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InternalError("a plan that was parsed cannot be parsed again");
  }
  for (const v1::Bucket& bucket : message.buckets()) {
    file.stated.push_back({NameOf(bucket.kind()), bucket.mesh_dim()});
  }
  return file;
}

// What pictures and tables show has no control characters. Names may be entries that were written
// over several lines.
absl::Status CheckText(absl::string_view field, absl::string_view text) {
  const size_t bad = FindControl(text);
  if (bad == absl::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("plan: ", field, ": \"", Printable(text),
                                                 "\" has a control character (byte ", bad, ")"));
}

absl::Status CheckTexts(const PlanFile& file) {
  const Plan& plan = file.plan;
  RETURN_IF_ERROR(CheckText("mode", plan.mode));
  RETURN_IF_ERROR(CheckText("planner", plan.planner));
  RETURN_IF_ERROR(CheckText("cost_profile", plan.cost_profile));
  RETURN_IF_ERROR(CheckText("backend", plan.backend));
  RETURN_IF_ERROR(CheckText("bits_text", plan.bits_text));
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    RETURN_IF_ERROR(CheckText(absl::StrCat("buckets[", k, "].name"), plan.buckets[k].name));
  }
  for (size_t i = 0; i < plan.diagnostics.size(); ++i) {
    const Diagnostic& d = plan.diagnostics[i];
    RETURN_IF_ERROR(CheckText(absl::StrCat("diagnostics[", i, "].code"), d.code));
    RETURN_IF_ERROR(CheckText(absl::StrCat("diagnostics[", i, "].text"), d.text));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanFile> ReadPlan(absl::string_view bytes) {
  // A serialised Plan begins with the tag of format_version, which is no brace.
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(bytes), "{");
  ASSIGN_OR_RETURN(PlanFile file, is_json ? ReadJson(bytes) : ReadBinary(bytes));
  RETURN_IF_ERROR(CheckTexts(file));
  return file;
}

absl::StatusOr<PlanFile> ReadPlanFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxPlanFileBytes));
  absl::StatusOr<PlanFile> file = ReadPlan(bytes);
  if (file.ok()) return file;
  return absl::Status(file.status().code(), absl::StrCat(path, ": ", file.status().message()));
}

}  // namespace bucketd
