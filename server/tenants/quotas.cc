#include "server/tenants/quotas.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/base/errors.h"
#include "server/base/named.h"

namespace bucketd {
namespace {

// Who calls a tenant so in the tenants file has both counted as one.
constexpr char kDefaultLabel[] = "(default)";
constexpr char kOthersLabel[] = "(others)";

size_t At(Quota quota) { return static_cast<size_t>(quota); }

// "uploads at a time", and what makes room.
struct Words {
  Quota quota;
  const char* what;
  const char* help;
};
constexpr char kReleaseJobs[] = "release jobs that are over: bucketctl pin --release";
constexpr std::array<Words, kQuotas> kWords = {{
    {Quota::kPins, "pins, or jobs that have any", kReleaseJobs},
    {Quota::kPlanBytes, "bytes of plans that its jobs hold", kReleaseJobs},
    {Quota::kGraphBytes, "bytes of graphs", "this graph alone is more than that"},
    {Quota::kUploads, "uploads at a time", "come again when one of them has ended"},
    {Quota::kComputations, "plans that are computed or wait for it",
     "come again when one of them is there"},
}};
static_assert(IsByPosition(kWords, &Words::quota));

}  // namespace

Quotas::Quotas(std::string path, const TenantLimits& unsaid, prometheus::Registry& registry)
    : path_(std::move(path)),
      used_family_(prometheus::BuildGauge()
                       .Name("bucketd_tenant_quota_used")
                       .Help("What tenants with an entry in the tenants file have; \"(others)\": "
                             "all others together, \"(default)\": the one without a name.")
                       .Register(registry)),
      limit_family_(prometheus::BuildGauge()
                        .Name("bucketd_tenant_quota_limit")
                        .Help("What they may have; of \"(others)\": each of them. -1: no bound.")
                        .Register(registry)),
      refused_family_(prometheus::BuildCounter()
                          .Name("bucketd_tenant_quota_refusals_total")
                          .Help("What was refused since a tenant had as much as it may.")
                          .Register(registry)),
      file_("tenants", {path_}, [path = path_, unsaid] { return TenantTable::Read(path, unsaid); },
            {registry, "bucketd_tenants_reloads_total",
             "Times that the tenants file was read again; refused: what was in force stays."}) {
  auto table = std::make_shared<TenantTable>();
  table->others = unsaid;
  const absl::MutexLock lock(&mutex_);
  table_ = std::move(table);
  others_ = MakeSeries(kOthersLabel, table_->others);
}

absl::Status Quotas::Load() {
  if (path_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(file_.Load());
  Relabel();
  return absl::OkStatus();
}

void Quotas::Look() {
  if (path_.empty()) return;
  file_.Look();
  Relabel();
}

Quotas::Series Quotas::MakeSeries(const std::string& label, const TenantLimits& limits) {
  Series series;
  for (size_t i = 0; i < kQuotas; ++i) {
    const prometheus::Labels labels = {{"tenant", label},
                                       {"quota", std::string(Name(static_cast<Quota>(i)))}};
    series.used[i] = &used_family_.Add(labels);
    series.limit[i] = &limit_family_.Add(labels);
    series.refused[i] = &refused_family_.Add(labels);
    series.used[i]->Set(0);
    series.limit[i]->Set(limits.most[i] == kUnbounded ? -1 : static_cast<double>(limits.most[i]));
  }
  return series;
}

void Quotas::Drop(const Series& series) {
  for (size_t i = 0; i < kQuotas; ++i) {
    used_family_.Remove(series.used[i]);
    limit_family_.Remove(series.limit[i]);
    refused_family_.Remove(series.refused[i]);
  }
}

void Quotas::Relabel() {
  std::shared_ptr<const TenantTable> table = file_.Get();
  const absl::MutexLock lock(&mutex_);
  if (table == table_) return;
  table_ = std::move(table);
  for (auto at = series_.begin(); at != series_.end();) {
    if (!table_->named.contains(at->first)) {
      Drop(at->second);
      at = series_.erase(at);
    } else {
      ++at;
    }
  }
  // Adding what is there gives what is there.
  others_ = MakeSeries(kOthersLabel, table_->others);
  for (const auto& [tenant, limits] : table_->named) {
    series_[tenant] = MakeSeries(tenant.empty() ? kDefaultLabel : tenant, limits);
  }
  for (const auto& [tenant, used] : used_) {
    for (size_t i = 0; i < kQuotas; ++i) {
      SeriesOf(tenant).used[i]->Increment(static_cast<double>(used[i]));
    }
  }
}

Quotas::Series& Quotas::SeriesOf(absl::string_view tenant) {
  const auto found = series_.find(tenant);
  return found == series_.end() ? others_ : found->second;
}

int64_t Quotas::LimitOf(Quota quota, absl::string_view tenant) const {
  const absl::MutexLock lock(&mutex_);
  return table_->Of(tenant).of(quota);
}

int64_t Quotas::WeightOf(absl::string_view tenant) const {
  const absl::MutexLock lock(&mutex_);
  return table_->Of(tenant).weight;
}

int64_t Quotas::UsedOf(Quota quota, absl::string_view tenant) const {
  const absl::MutexLock lock(&mutex_);
  const auto found = used_.find(tenant);
  return found == used_.end() ? 0 : found->second[At(quota)];
}

void Quotas::SetLocked(Quota quota, absl::string_view tenant, int64_t used) {
  auto found = used_.find(tenant);
  if (found == used_.end()) {
    if (used == 0) return;
    found = used_.emplace(std::string(tenant), Used{}).first;
  }
  const int64_t before = std::exchange(found->second[At(quota)], used);
  SeriesOf(tenant).used[At(quota)]->Increment(static_cast<double>(used - before));
  const Used& all = found->second;
  if (std::all_of(all.begin(), all.end(), [](int64_t one) { return one == 0; })) {
    used_.erase(found);
  }
}

void Quotas::Set(Quota quota, absl::string_view tenant, int64_t used) {
  const absl::MutexLock lock(&mutex_);
  SetLocked(quota, tenant, used);
}

void Quotas::SetAll(Quota quota, const std::map<std::string, int64_t>& used) {
  const absl::MutexLock lock(&mutex_);
  std::vector<std::string> gone;
  for (const auto& [tenant, had] : used_) {
    if (had[At(quota)] != 0 && !used.contains(tenant)) gone.push_back(tenant);
  }
  for (const std::string& tenant : gone) SetLocked(quota, tenant, 0);
  for (const auto& [tenant, bytes] : used) SetLocked(quota, tenant, bytes);
}

absl::Status Quotas::Refuse(Quota quota, absl::string_view tenant, int64_t used, bool lasting) {
  const absl::MutexLock lock(&mutex_);
  SeriesOf(tenant).refused[At(quota)]->Increment();
  const int64_t limit = table_->Of(tenant).of(quota);
  const Words& words = kWords[At(quota)];
  return MakeError(
      Reason::kQuotaUsedUp,
      absl::StrCat("tenant \"", tenant, "\" has used up its quota ", Name(quota), ": ", limit, " ",
                   words.what, " are allowed, and it has ", used, ". ", words.help,
                   path_.empty() ? "" : absl::StrCat("; the quota is in the server's ", path_)),
      {.limit = limit, .actual = used, .lasting = lasting});
}

absl::StatusOr<Quotas::Held> Quotas::Take(Quota quota, const std::string& tenant) {
  int64_t used = 0;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = used_.find(tenant);
    used = found == used_.end() ? 0 : found->second[At(quota)];
    if (used < table_->Of(tenant).of(quota)) {
      SetLocked(quota, tenant, used + 1);
      Held held;
      held.quotas_ = this;
      held.quota_ = quota;
      held.tenant_ = tenant;
      return held;
    }
  }
  return Refuse(quota, tenant, used, /*lasting=*/false);
}

Quotas::Held& Quotas::Held::operator=(Held&& other) noexcept {
  GiveBack();
  quotas_ = std::exchange(other.quotas_, nullptr);
  quota_ = other.quota_;
  tenant_ = std::move(other.tenant_);
  return *this;
}

void Quotas::Held::GiveBack() {
  if (quotas_ == nullptr) return;
  Quotas& quotas = *std::exchange(quotas_, nullptr);
  const absl::MutexLock lock(&quotas.mutex_);
  const auto found = quotas.used_.find(tenant_);
  quotas.SetLocked(quota_, tenant_, found->second[At(quota_)] - 1);
}

std::vector<TenantUse> Quotas::List() const {
  const absl::MutexLock lock(&mutex_);
  std::map<std::string, TenantUse> all;
  const auto add = [&all, &table = *table_](const std::string& tenant) -> TenantUse& {
    TenantUse& use = all[tenant];
    use.tenant = tenant;
    use.limits = table.Of(tenant);
    return use;
  };
  for (const auto& [tenant, limits] : table_->named) {
    TenantUse& use = add(tenant);
    use.named = true;
    const auto series = series_.find(tenant);
    for (size_t i = 0; i < kQuotas && series != series_.end(); ++i) {
      use.refused[i] = static_cast<int64_t>(series->second.refused[i]->Value());
    }
  }
  for (const auto& [tenant, used] : used_) add(tenant).used = used;
  std::vector<TenantUse> list;
  for (auto& [tenant, use] : all) list.push_back(std::move(use));
  return list;
}

}  // namespace bucketd
