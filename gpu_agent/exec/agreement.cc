#include "gpu_agent/exec/agreement.h"

#include <algorithm>
#include <array>
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

struct Said {
  Digest digest{};
  uint64_t epoch = 0;
  friend auto operator<=>(const Said&, const Said&) = default;
};
constexpr int64_t kSaidBytes = 40;

using Bytes = std::vector<std::byte>;

void Write(const Said& said, std::byte* to) {
  std::memcpy(to, said.digest.data(), said.digest.size());
  for (size_t i = 0; i < 8; ++i) {
    to[said.digest.size() + i] = static_cast<std::byte>(said.epoch >> (8 * i) & 0xff);
  }
}

Said Read(const std::byte* from) {
  Said said;
  std::memcpy(said.digest.data(), from, said.digest.size());
  for (size_t i = 0; i < 8; ++i) {
    said.epoch |= static_cast<uint64_t>(from[said.digest.size() + i]) << (8 * i);
  }
  return said;
}

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
  std::array<std::byte, kSaidBytes> mine;
  Write({digest, epoch}, mine.data());
  const absl::StatusOr<Bytes> all = Exchange(communicator, mine, deadline);
  if (!all.ok()) {
    return absl::Status(
        all.status().code(),
        absl::StrCat("ranks of ", group, " compare plans: ", all.status().message()));
  }
  std::map<Said, std::vector<int>> ranks;
  for (int r = 0; r < communicator.size(); ++r) {
    ranks[Read(all->data() + r * kSaidBytes)].push_back(r);
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
