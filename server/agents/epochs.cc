#include "server/agents/epochs.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "passes/base/status_macros.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

constexpr char kKey[] = "next-epoch";
constexpr uint64_t kBlock = 4096;
constexpr int kAttempts = 16;

}  // namespace

Epochs::Epochs(Store& store, std::function<int64_t()> now_ms)
    : store_(store), now_ms_(std::move(now_ms)) {}

absl::Status Epochs::Take() {
  const absl::MutexLock taking(&taking_);
  uint64_t given = 0;
  {
    const absl::MutexLock lock(&mutex_);
    if (end_ - next_ > kBlock / 2) return absl::OkStatus();
    given = next_;
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ASSIGN_OR_RETURN(const std::optional<std::string> before,
                     store_.FindRecord(Shelf::kSettings, kKey));
    uint64_t stored = 0;
    if (before.has_value() && !absl::SimpleAtoi(*before, &stored)) stored = 0;
    const uint64_t begin = std::max({stored, given, static_cast<uint64_t>(now_ms_())});
    const std::string end = absl::StrCat(begin + kBlock);
    const AuditLine line{ServerItself(),      kAllTenants,         "epochs",
                         "numbers of epochs", before.value_or(""), end};
    CrashPoint("epochs: to be taken");
    const absl::Status written = store_.ReplaceRecord(Shelf::kSettings, kKey, before, end, &line);
    if (absl::IsAborted(written)) continue;
    RETURN_IF_ERROR(written);
    CrashPoint("epochs: taken");
    const absl::MutexLock lock(&mutex_);
    next_ = std::max(begin, next_);
    end_ = begin + kBlock;
    return absl::OkStatus();
  }
  return absl::UnavailableError("other servers take numbers of epochs again and again");
}

uint64_t Epochs::Next() {
  const absl::MutexLock lock(&mutex_);
  if (next_ >= end_) {
    spdlog::warn(
        "no number of an epoch is left of what the store gave: this "
        "one is the clock's");
    next_ = end_ = std::max(next_, static_cast<uint64_t>(now_ms_()));
    ++end_;
  }
  return next_++;
}

}  // namespace bucketd
