#include "server/tenants/tenant_table.h"

#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/base/toml.h"
#include "server/base/named.h"
#include "server/base/names.h"
#include "server/config/options.h"
#include "server/identity/small_file.h"
#include "server/identity/toml_problems.h"

namespace bucketd {
namespace {

constexpr std::array<Named<Quota>, kQuotas> kNames = {{
    {Quota::kPins, "pins"},
    {Quota::kPlanBytes, "plan_bytes"},
    {Quota::kGraphBytes, "graph_bytes"},
    {Quota::kUploads, "uploads"},
    {Quota::kComputations, "computations"},
}};
static_assert(IsByPosition(kNames));

bool IsBytes(size_t quota) {
  return quota == static_cast<size_t>(Quota::kPlanBytes) ||
         quota == static_cast<size_t>(Quota::kGraphBytes);
}

// 0 or more; of bytes also "10 GiB".
std::optional<int64_t> Amount(const toml::node& node, bool bytes) {
  if (node.is_integer()) {
    const int64_t value = node.as_integer()->get();
    return value < 0 ? std::nullopt : std::optional<int64_t>(value);
  }
  if (!bytes || !node.is_string()) return std::nullopt;
  const absl::StatusOr<int64_t> parsed = ParseBytes(node.as_string()->get());
  return parsed.ok() ? std::optional<int64_t>(*parsed) : std::nullopt;
}

void ReadLimits(const toml::table& table, TomlProblems& problems, TenantLimits& limits) {
  for (size_t i = 0; i < kQuotas; ++i) {
    const toml::node* node = table.get(kNames[i].name);
    if (node == nullptr) continue;
    const std::optional<int64_t> amount = Amount(*node, IsBytes(i));
    if (amount.has_value()) {
      limits.most[i] = *amount;
    } else {
      problems.Add(*node, absl::StrCat("expected ", kNames[i].name,
                                       IsBytes(i) ? " = a number of bytes, or \"10 GiB\""
                                                  : " = a number, 0 or more"));
    }
  }
  const toml::node* weight = table.get("weight");
  if (weight == nullptr) return;
  limits.weight = weight->is_integer() ? weight->as_integer()->get() : 0;
  if (limits.weight < 1 || limits.weight > TenantTable::kMaxWeight) {
    problems.Add(*weight, absl::StrCat("expected weight = 1 to ", TenantTable::kMaxWeight));
  }
}

std::vector<std::string> Keys() {
  std::vector<std::string> keys;
  for (const auto& quota : kNames) keys.emplace_back(quota.name);
  keys.emplace_back("weight");
  return keys;
}

void ReadTenant(const toml::table& table, TomlProblems& problems, TenantTable& tenants) {
  std::vector<std::string> keys = Keys();
  keys.emplace_back("name");
  problems.CheckKeys(table, keys);
  TenantLimits limits = tenants.others;
  ReadLimits(table, problems, limits);
  const toml::node* name = table.get("name");
  if (name == nullptr || !name->is_string()) {
    problems.Add(name == nullptr ? table : *name,
                 "expected name = \"NAME\", \"\" for the default tenant");
    return;
  }
  const absl::Status valid = CheckTenant(name->as_string()->get());
  if (!valid.ok()) problems.Add(*name, valid.message());
  if (!tenants.named.emplace(name->as_string()->get(), limits).second) {
    problems.Add(*name, absl::StrCat("\"", name->as_string()->get(), "\" has an entry already"));
  } else if (tenants.named.size() > TenantTable::kMaxTenants) {
    problems.Add(*name, absl::StrCat("more than ", TenantTable::kMaxTenants,
                                     " tenants; [others] is for those that are alike"));
  }
}

}  // namespace

absl::string_view Name(Quota quota) { return kNames[static_cast<size_t>(quota)].name; }

const TenantLimits& TenantTable::Of(absl::string_view tenant) const {
  const auto found = named.find(tenant);
  return found == named.end() ? others : found->second;
}

absl::StatusOr<TenantTable> TenantTable::Parse(absl::string_view text, const std::string& path,
                                               const TenantLimits& unsaid) {
  ASSIGN_OR_RETURN(const toml::table file, ParseToml(text, path));
  TomlProblems problems(path);
  TenantTable tenants;
  tenants.others = unsaid;
  problems.CheckKeys(file, {"tenant", "others"});
  if (const toml::node* others = file.get("others"); others != nullptr) {
    if (others->is_table()) {
      problems.CheckKeys(*others->as_table(), Keys());
      ReadLimits(*others->as_table(), problems, tenants.others);
    } else {
      problems.Add(*others, "expected a part that begins with [others]");
    }
  }
  if (const toml::node* node = file.get("tenant"); node != nullptr) {
    for (const toml::table* entry : problems.Tables(*node, "tenant")) {
      ReadTenant(*entry, problems, tenants);
    }
  }
  RETURN_IF_ERROR(problems.status());
  return tenants;
}

absl::StatusOr<TenantTable> TenantTable::Read(const std::string& path, const TenantLimits& unsaid) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  return Parse(text, path, unsaid);
}

}  // namespace bucketd
