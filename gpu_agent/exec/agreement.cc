#include "gpu_agent/exec/agreement.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "gpu_agent/device/host_stream.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// As it travels.
struct Said {
  Digest digest{};
  uint64_t epoch = 0;
  friend auto operator<=>(const Said&, const Said&) = default;
};
static_assert(sizeof(Said) == 40);

using Bytes = std::vector<std::byte>;

// Those that say the same in one clause, in the order of their lowest ranks.
std::string Difference(const std::map<Said, std::vector<int>>& ranks) {
  std::vector<const std::pair<const Said, std::vector<int>>*> clauses;
  for (const auto& entry : ranks) clauses.push_back(&entry);
  std::sort(clauses.begin(), clauses.end(),
            [](const auto* a, const auto* b) { return a->second.front() < b->second.front(); });
  return absl::StrJoin(clauses, ", ", [](std::string* out, const auto* clause) {
    const bool one = clause->second.size() == 1;
    absl::StrAppend(out, one ? "rank " : "ranks ", absl::StrJoin(clause->second, ", "),
                    one ? " has" : " have", " plan ", ToHex(clause->first.digest).substr(0, 8),
                    " of epoch ", clause->first.epoch);
  });
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> Exchange(Communicator& communicator,
                                                absl::Span<const std::byte> mine,
                                                absl::Time deadline) {
  Communicator& host = communicator.host();
  Bytes all(mine.size() * static_cast<size_t>(host.size()));
  Collective gather;
  gather.kind = CollectiveKind::kAllGather;
  gather.count = static_cast<int64_t>(mine.size());
  gather.in = mine.data();
  gather.out = all.data();
  gather.dtype = DType::kU8;
  ASSIGN_OR_RETURN(const std::unique_ptr<HostStream> stream, HostStream::Start("agreement"));
  RETURN_IF_ERROR(host.Launch(*stream, {&gather, 1}));
  const std::shared_ptr<Event> end = stream->Record();
  const absl::Status status = end->Wait(deadline);
  if (status.ok()) return all;
  // The stream must leave the bytes before they go.
  host.Abort("ranks did not agree in time");
  end->Wait(absl::InfiniteFuture()).IgnoreError();
  return status;
}

absl::Status Agree(Communicator& communicator, const std::string& group, const Digest& digest,
                   uint64_t epoch, absl::Time deadline) {
  const Said mine{digest, epoch};
  const auto* bytes = reinterpret_cast<const std::byte*>(&mine);
  const absl::StatusOr<Bytes> all = Exchange(communicator, {bytes, sizeof(mine)}, deadline);
  if (!all.ok()) {
    return absl::Status(
        all.status().code(),
        absl::StrCat("ranks of ", group, " compare plans: ", all.status().message()));
  }
  std::map<Said, std::vector<int>> ranks;
  for (int r = 0; r < communicator.size(); ++r) {
    Said said;
    std::memcpy(&said, all->data() + static_cast<size_t>(r) * sizeof(said), sizeof(said));
    ranks[said].push_back(r);
  }
  if (ranks.size() == 1) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("ranks of ", group, " differ: ", Difference(ranks),
                   "; start all of them by one plan, with one installation"));
}

absl::StatusOr<bool> OnAllRanks(Communicator& communicator, bool mine, absl::Time deadline) {
  const std::byte own{mine};
  ASSIGN_OR_RETURN(const Bytes all, Exchange(communicator, {&own, 1}, deadline));
  return std::find(all.begin(), all.end(), std::byte{0}) == all.end();
}

}  // namespace bucketd::agent
