// What tenants have of what is bounded, beside what they may have. Thread-safe, and never blocks
// but for Load and Look.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

#include "server/identity/reloaded.h"
#include "server/tenants/tenant_table.h"

namespace bucketd {

struct TenantUse {
  std::string tenant;
  bool named = false;  // it has an entry of its own
  TenantLimits limits;
  std::array<int64_t, kQuotas> used{};
  std::array<int64_t, kQuotas> refused{};  // since the start; of those that have no entry: 0
};

class Quotas {
 public:
  // `path` "": there is no file, and `unsaid` holds for all. `registry` outlives this.
  Quotas(std::string path, const TenantLimits& unsaid, prometheus::Registry& registry);

  // Once, before the others. The error names the file.
  absl::Status Load();
  // Reads the file again if it has changed. What is no good is logged and counted, and changes
  // nothing. What is held already is nobody's to take away.
  void Look();

  int64_t LimitOf(Quota quota, absl::string_view tenant) const;
  int64_t WeightOf(absl::string_view tenant) const;

  // One of what is under way, until it dies.
  class Held {
   public:
    Held() = default;
    Held(Held&& other) noexcept { *this = std::move(other); }
    Held& operator=(Held&& other) noexcept;
    ~Held() { GiveBack(); }
    bool holds() const { return quotas_ != nullptr; }

   private:
    friend class Quotas;
    void GiveBack();
    Quotas* quotas_ = nullptr;
    Quota quota_{};
    std::string tenant_;
  };
  // QUOTA_USED_UP if the tenant has as many as it may. This outlives what it returns.
  absl::StatusOr<Held> Take(Quota quota, const std::string& tenant);
  // Of what is counted elsewhere. `lasting`: it will not be otherwise by and by.
  absl::Status Refuse(Quota quota, absl::string_view tenant, int64_t used, bool lasting);
  void Set(Quota quota, absl::string_view tenant, int64_t used);
  // Of all tenants; those that are not named have none.
  void SetAll(Quota quota, const std::map<std::string, int64_t>& used);
  int64_t UsedOf(Quota quota, absl::string_view tenant) const;

  // Those that have an entry or use something, by name.
  std::vector<TenantUse> List() const;

 private:
  using Used = std::array<int64_t, kQuotas>;
  struct Series {
    std::array<prometheus::Gauge*, kQuotas> used{}, limit{};
    std::array<prometheus::Counter*, kQuotas> refused{};
  };
  void SetLocked(Quota quota, absl::string_view tenant, int64_t used)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Series for those who have an entry now.
  void Relabel() ABSL_LOCKS_EXCLUDED(mutex_);
  Series MakeSeries(const std::string& label, const TenantLimits& limits);
  void Drop(const Series& series);
  Series& SeriesOf(absl::string_view tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  prometheus::Family<prometheus::Gauge>& used_family_;
  prometheus::Family<prometheus::Gauge>& limit_family_;
  prometheus::Family<prometheus::Counter>& refused_family_;
  Reloaded<TenantTable> file_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TenantTable> table_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Used, std::less<>> used_ ABSL_GUARDED_BY(mutex_);      // none of zeros
  std::map<std::string, Series, std::less<>> series_ ABSL_GUARDED_BY(mutex_);  // of those named
  Series others_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
