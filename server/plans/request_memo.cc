#include "server/plans/request_memo.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace bucketd {

std::shared_ptr<const KnownRequest> RequestMemo::Get(absl::string_view sender,
                                                     absl::string_view request) {
  if (request.size() > kMaxRequestBytes) return nullptr;
  const std::string with_sender = sender.empty() ? std::string() : absl::StrCat(sender, request);
  const absl::MutexLock lock(&mutex_);
  return lru_.Get(sender.empty() ? request : with_sender);
}

void RequestMemo::Put(absl::string_view sender, absl::string_view request, KnownRequest known) {
  if (request.size() > kMaxRequestBytes) return;
  const auto bytes = static_cast<int64_t>(sizeof(KnownRequest) + known.key.size());
  auto entry = std::make_shared<const KnownRequest>(std::move(known));
  const absl::MutexLock lock(&mutex_);
  lru_.Put(absl::StrCat(sender, request), std::move(entry), bytes);
}

}  // namespace bucketd
