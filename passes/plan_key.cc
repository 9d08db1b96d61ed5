#include "passes/plan_key.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "passes/pass/option_table.h"

namespace bucketd {
namespace {

// CEscape leaves no newline and no unescaped quote, so that a line is one field and no value can
// pass for another field.
void Text(absl::string_view name, absl::string_view value, std::string& out) {
  absl::StrAppend(&out, name, "=\"", absl::CEscape(value), "\"\n");
}

void Number(absl::string_view name, int64_t value, std::string& out) {
  absl::StrAppend(&out, name, "=", value, "\n");
}

void AppendMesh(const Mesh& mesh, std::string& out) {
  Text("mesh.device_type", mesh.device_type, out);
  Number("mesh.dims", static_cast<int64_t>(mesh.dims.size()), out);
  for (const MeshDim& dim : mesh.dims) {
    Text("mesh.dim.name", dim.name, out);
    Number("mesh.dim.size", dim.size, out);
    // 0 says "all on one node", as does the size itself.
    Number("mesh.dim.ranks_per_node", dim.ranks_per_node == 0 ? dim.size : dim.ranks_per_node, out);
    Text("mesh.dim.link_class", dim.link_class, out);
  }
}

void AppendOptions(const PlanOptions& options, std::string& out) {
  for (const OptionInfo& option : AllOptions()) {
    if (option.name != "parameter_order") Text(option.name, option.print(options), out);
  }
  // One by one: a name may hold a comma.
  Number("parameter_order", static_cast<int64_t>(options.parameter_order.size()), out);
  for (const std::string& fqn : options.parameter_order) Text("parameter", fqn, out);
}

void AppendWhose(absl::string_view tenant, const Digest& graph, std::string& out) {
  Text("tenant", tenant, out);
  Text("graph", ToHex(graph), out);
}

}  // namespace

std::string PlanKey(absl::string_view tenant, const Digest& graph, const Mesh& mesh,
                    const PlanOptions& options, const KeyedProfile& profile,
                    absl::string_view planner_version) {
  std::string out = "bucketd plan key 2\n";
  AppendWhose(tenant, graph, out);
  AppendMesh(mesh, out);
  AppendOptions(options, out);
  Text("cost_profile", absl::StrCat(profile.name, "@", profile.version), out);
  Text("cost_profile.fingerprint", profile.fingerprint, out);
  Text("planner", planner_version, out);
  return out;
}

bool IsPlanKeyOf(absl::string_view plan_key, absl::string_view tenant, const Digest& graph) {
  std::string whose = "\n";
  AppendWhose(tenant, graph, whose);
  // The first line is the format's.
  return absl::StartsWith(plan_key.substr(std::min(plan_key.find('\n'), plan_key.size())), whose);
}

absl::string_view ChosenPartOf(absl::string_view plan_key) {
  // The last line of that name, and no value holds a newline.
  const size_t newline = plan_key.rfind("\ncost_profile=");
  return newline == absl::string_view::npos ? plan_key : plan_key.substr(0, newline + 1);
}

absl::string_view ProfileIdOf(absl::string_view plan_key) {
  absl::string_view rest = plan_key.substr(ChosenPartOf(plan_key).size());
  if (!absl::ConsumePrefix(&rest, "cost_profile=\"")) return "";
  return rest.substr(0, rest.find('"'));
}

}  // namespace bucketd
