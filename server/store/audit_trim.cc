#include "server/store/audit_trim.h"

#include <algorithm>

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

constexpr std::array kCausedByCalls = {"generation", "pin",    "finish",
                                       "displace",   "report", "epochs"};

// The largest share with which all together have at most `bound`; where that is more than there is,
// any that is enough.
int64_t ShareOf(std::vector<int64_t> counts, int64_t bound) {
  std::sort(counts.begin(), counts.end());
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t share = bound / static_cast<int64_t>(counts.size() - i);
    if (counts[i] > share) return share;
    bound -= counts[i];  // what it leaves is the others'
  }
  return INT64_MAX;
}

}  // namespace

bool IsCausedByCalls(absl::string_view what) {
  return std::find(kCausedByCalls.begin(), kCausedByCalls.end(), what) != kCausedByCalls.end();
}

AuditShares::AuditShares(absl::Span<const AuditCount> counts, int64_t lines) {
  std::array<std::map<std::string, int64_t>, 2> of_tenants;
  for (const AuditCount& count : counts) {
    of_tenants[IsCausedByCalls(count.what) ? 1 : 0][count.tenant] += count.lines;
  }
  for (size_t i = 0; i < logs_.size(); ++i) {
    std::vector<int64_t> each;
    int64_t all = 0;
    for (const auto& [tenant, count] : of_tenants[i]) {
      each.push_back(count);
      all += count;
    }
    beyond_ = beyond_ || all > lines + lines / 16;
    // Of more tenants than lines the newest have one each.
    logs_[i].share = std::max<int64_t>(1, ShareOf(std::move(each), lines));
    logs_[i].left = lines;
  }
}

bool AuditShares::Keeps(absl::string_view tenant, absl::string_view what) {
  Log& log = logs_[IsCausedByCalls(what) ? 1 : 0];
  int64_t& kept = log.kept[std::string(tenant)];
  if (kept >= log.share || log.left <= 0) return false;
  ++kept;
  --log.left;
  return true;
}

absl::Status TrimAuditTable(const AuditTable& table, int64_t lines) {
  ASSIGN_OR_RETURN(const std::vector<AuditCount> counts, table.count());
  AuditShares shares(counts, lines);
  if (!shares.beyond()) return absl::OkStatus();
  int64_t before = INT64_MAX;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<AuditLineAt> page, table.list(before, kAuditPage));
    if (page.empty()) return absl::OkStatus();
    std::vector<int64_t> going;
    for (const AuditLineAt& line : page) {
      if (!shares.Keeps(line.tenant, line.what)) going.push_back(line.number);
    }
    if (!going.empty()) RETURN_IF_ERROR(table.erase(going));
    before = page.back().number;
  }
}

}  // namespace bucketd
