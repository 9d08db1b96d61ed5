#include "server/store/store_metrics.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

#include "server/base/add_metric.h"
#include "server/base/log.h"
#include "server/base/named.h"

namespace bucketd {
namespace {

using prometheus::Counter;
using prometheus::Registry;

constexpr std::array<Named<StoreValue>, kStoreValues> kValues = {{
    {StoreValue::kPlan, "plan"},
    {StoreValue::kRecord, "record"},
}};
static_assert(IsByPosition(kValues));
constexpr std::array<Named<StoreRead>, kStoreReads> kReads = {{
    {StoreRead::kHit, "hit"},
    {StoreRead::kMiss, "miss"},
    {StoreRead::kDamaged, "damaged"},
    {StoreRead::kError, "error"},
}};
static_assert(IsByPosition(kReads));
constexpr std::array<Named<StoreWrite>, kStoreWrites> kWrites = {{
    {StoreWrite::kOk, "ok"},
    {StoreWrite::kNoSpace, "no_space"},
    {StoreWrite::kError, "error"},
}};
static_assert(IsByPosition(kWrites));
constexpr std::chrono::minutes kQuiet{1};

}  // namespace

StoreMetrics::StoreMetrics(Registry& r)
    : registry_(r),
      writes_(r, "bucketd_store_writes_total", "Writes to the store by what came of them.",
              "result", kWrites) {
  for (size_t v = 0; v < kValues.size(); ++v) {
    for (size_t i = 0; i < kReads.size(); ++i) {
      reads_[v][i] =
          &AddCounter(r, "bucketd_store_reads_total", "Reads of the store by what came of them.",
                      {{"value", kValues[v].name}, {"result", kReads[i].name}});
    }
  }
}

void StoreMetrics::Read(StoreValue value, StoreRead result, absl::string_view why) {
  reads_[static_cast<size_t>(value)][static_cast<size_t>(result)]->Increment();
  Note(reading_fails_, &StoreMetrics::reading_, result == StoreRead::kError ? why : "");
  if (!why.empty()) Problem(result == StoreRead::kDamaged, why);
}

void StoreMetrics::Wrote(StoreWrite result, absl::string_view why) {
  writes_(result).Increment();
  Note(writing_fails_, &StoreMetrics::writing_, why);
  if (!why.empty()) Problem(false, why);
}

void StoreMetrics::Note(std::atomic<bool>& failing,
                        std::optional<StoreTrouble> StoreMetrics::*which, absl::string_view why) {
  if (why.empty() && !failing) return;
  const absl::MutexLock lock(&mutex_);
  std::optional<StoreTrouble>& trouble = this->*which;
  failing = !why.empty();
  if (why.empty()) {
    trouble.reset();
  } else if (trouble.has_value()) {
    trouble->why = std::string(why);
  } else {
    trouble = StoreTrouble{std::string(why), WallNow()};
  }
}

StoreHealth StoreMetrics::Health() const {
  const auto count = [](const Counter& counter) { return static_cast<int64_t>(counter.Value()); };
  const auto error = static_cast<size_t>(StoreRead::kError);
  StoreHealth health;
  health.failed_reads = count(*reads_[0][error]) + count(*reads_[1][error]);
  health.failed_writes = count(writes_(StoreWrite::kNoSpace)) + count(writes_(StoreWrite::kError));
  health.damage = count(damage_);
  const absl::MutexLock lock(&mutex_);
  health.reading = reading_;
  health.writing = writing_;
  return health;
}

std::string StoreHealth::InWords() const {
  std::vector<std::string> troubles;
  const auto add = [&](absl::string_view what, const std::optional<StoreTrouble>& trouble) {
    if (!trouble.has_value()) return;
    const absl::Time since = absl::FromChrono(trouble->since);
    troubles.push_back(absl::StrCat(
        what, " fails since ",
        absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", since, absl::UTCTimeZone()), ": ", trouble->why));
  };
  add("reading", reading);
  add("writing", writing);
  return absl::StrJoin(troubles, "; ");
}

void StoreMetrics::Evicted(int64_t plans, int64_t bytes) {
  evictions_.Increment(static_cast<double>(plans));
  evicted_bytes_.Increment(static_cast<double>(bytes));
}

void StoreMetrics::Problem(bool damage, absl::string_view text) {
  if (damage) {
    damage_.Increment();
    LogLine(spdlog::level::err, absl::StrCat("store: ", text), {});
    return;
  }
  const absl::MutexLock lock(&mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now < quiet_until_) {
    ++suppressed_;
    return;
  }
  LogLine(spdlog::level::err, absl::StrCat("store: ", text),
          {{"not_logged", absl::StrCat(suppressed_), true}});
  suppressed_ = 0;
  quiet_until_ = now + kQuiet;
}

void StoreMetrics::Show(const StoreStats& stats, WallTime now) {
  plans_.Set(static_cast<double>(stats.plans));
  bytes_.Set(static_cast<double>(stats.plan_bytes));
  file_bytes_.Set(static_cast<double>(stats.file_bytes));
  held_plans_.Set(static_cast<double>(stats.held_plans));
  records_.Set(static_cast<double>(stats.records));
  const auto idle = now - stats.oldest_use.value_or(now);
  oldest_use_seconds_.Set(std::chrono::duration<double>(idle).count());
}

}  // namespace bucketd
