#include "server/jobs/pin_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bucketd {
namespace {

absl::string_view PrefixOf(absl::string_view key) {
  return key.substr(0, key.find('\n', key.find('\n') + 1) + 1);
}

}  // namespace

std::string JobPrefix(absl::string_view tenant, absl::string_view job) {
  return absl::StrCat(tenant, "\n", job, "\n");
}
std::string JobKey(absl::string_view tenant, absl::string_view job) {
  return absl::StrCat(JobPrefix(tenant, job), "job");
}
std::string PinKey(absl::string_view tenant, absl::string_view job, absl::string_view scope) {
  return absl::StrCat(JobPrefix(tenant, job), "scope\n", scope);
}
absl::string_view TenantOf(absl::string_view key) { return key.substr(0, key.find('\n')); }
std::string SubjectOf(absl::string_view key) {
  const std::vector<absl::string_view> parts = absl::StrSplit(key, '\n');
  if (!IsPin(key)) return std::string(parts[1]);
  return absl::StrCat(parts[1], ", ", parts[3]);
}
bool IsPin(absl::string_view key) { return absl::StrContains(key, "\nscope\n"); }

void PinIndex::Put(const std::string& key, WallTime expires, uint32_t ranks) {
  const bool is_new = expires_.insert_or_assign(key, expires).second;
  Tenant& tenant = tenants_[std::string(TenantOf(key))];
  const std::string prefix(PrefixOf(key));
  Job& job = tenant.jobs[prefix];
  tenant.by_worth.erase({job.ranks, job.expires, prefix});
  job.ranks = std::max(job.ranks, ranks);
  job.expires = std::max(job.expires, expires);
  tenant.by_worth.emplace(job.ranks, job.expires, prefix);
  if (!is_new) return;
  ++job.records;
  if (!IsPin(key)) return;
  ++tenant.pins;
  ++pins_;
}

void PinIndex::Erase(const std::string& key) {
  if (expires_.erase(key) == 0) return;
  const auto tenant = tenants_.find(TenantOf(key));
  const auto job = tenant->second.jobs.find(PrefixOf(key));
  if (IsPin(key)) {
    --tenant->second.pins;
    --pins_;
  }
  if (--job->second.records > 0) return;
  tenant->second.by_worth.erase({job->second.ranks, job->second.expires, job->first});
  tenant->second.jobs.erase(job);
  if (tenant->second.jobs.empty()) tenants_.erase(tenant);
}

const PinIndex::Tenant* PinIndex::Find(absl::string_view key) const {
  const auto found = tenants_.find(TenantOf(key));
  return found == tenants_.end() ? nullptr : &found->second;
}

bool PinIndex::HasRoom(const std::string& key) const {
  const Tenant* tenant = Find(key);
  if (expires_.contains(key)) return true;
  if (tenant == nullptr) return limit_(TenantOf(key)) > 0;
  const bool new_job = !tenant->jobs.contains(PrefixOf(key));
  const int64_t limit = limit_(TenantOf(key));
  return (!IsPin(key) || tenant->pins < limit) &&
         (!new_job || static_cast<int64_t>(tenant->jobs.size()) < limit);
}

int64_t PinIndex::UsedBy(absl::string_view tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  return std::max(found->second.pins, static_cast<int64_t>(found->second.jobs.size()));
}

std::optional<std::string> PinIndex::Weakest(const std::string& key, uint32_t ranks,
                                             WallTime usual) const {
  const Tenant* tenant = Find(key);
  if (tenant == nullptr) return std::nullopt;
  for (const auto& [weight, expires, prefix] : tenant->by_worth) {
    if (weight > ranks) break;
    if (expires <= usual && prefix != PrefixOf(key)) return prefix;
  }
  return std::nullopt;
}

std::vector<std::string> PinIndex::Jobs(absl::string_view tenant) const {
  std::vector<std::string> names;
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return names;
  for (const auto& [prefix, job] : found->second.jobs) {
    names.push_back(prefix.substr(tenant.size() + 1, prefix.size() - tenant.size() - 2));
  }
  return names;
}

}  // namespace bucketd
