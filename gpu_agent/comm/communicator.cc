#include "gpu_agent/comm/communicator.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

#include "gpu_agent/comm/reduce.h"
#include "passes/base/collectives.h"

namespace bucketd::agent {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 46;

// In and out of this rank are apart, or as in place has them.
bool OverlapsWell(const Collective& collective, int rank, int size) {
  const auto in = reinterpret_cast<uintptr_t>(collective.in);
  const auto out = reinterpret_cast<uintptr_t>(collective.out);
  const auto in_bytes = static_cast<uintptr_t>(InputBytes(collective, size));
  const auto out_bytes = static_cast<uintptr_t>(OutputBytes(collective, size));
  if (in_bytes == 0 || in + in_bytes <= out || out + out_bytes <= in) return true;
  const uintptr_t part = in_bytes < out_bytes ? in_bytes : out_bytes;
  const uintptr_t offset = part * static_cast<uintptr_t>(rank);
  switch (collective.kind) {
    case CollectiveKind::kAllGather:
      return in == out + offset;
    case CollectiveKind::kReduceScatter:
      return out == in + offset;
    default:
      return in == out;
  }
}

}  // namespace

int64_t InputBytes(const Collective& collective, int size) {
  const int64_t bytes = collective.count * ItemSize(collective.dtype);
  return Scatters(collective.kind) ? bytes * size : bytes;
}

int64_t OutputBytes(const Collective& collective, int size) {
  const int64_t bytes = collective.count * ItemSize(collective.dtype);
  return Gathers(collective.kind) ? bytes * size : bytes;
}

absl::Status Validate(const Collective& collective, int size) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(Name(collective.kind), " of ", collective.count,
                                                   " ", Name(collective.dtype), ": ", why));
  };
  const int64_t item = ItemSize(collective.dtype);
  if (size < 1) return refuse("a process group has at least one rank");
  if (!Bucketable(collective.kind)) {
    return refuse("expected all_gather, reduce_scatter or all_reduce");
  }
  if (item == 0) return refuse("the dtype is not known");
  if (Gathers(collective.kind)) {
    if (collective.op != ReduceOp::kNone) return refuse("an all_gather has no reduce op");
  } else if (ReducerOf(collective.dtype, collective.op) == nullptr) {
    return refuse(absl::StrCat("the dtype has no reduce op ", Name(collective.op)));
  }
  if (collective.count < 0 || collective.count > kMaxBytes / item / size) {
    return refuse(absl::StrCat("expected 0 to 2^46 bytes over ", size, " ranks"));
  }
  if (collective.count > 0 && (collective.in == nullptr || collective.out == nullptr)) {
    return refuse("a null pointer");
  }
  return absl::OkStatus();
}

absl::Status ValidateGroup(absl::Span<const Collective> group, int rank, int size) {
  for (size_t i = 0; i < group.size(); ++i) {
    absl::Status status = Validate(group[i], size);
    if (status.ok() && !OverlapsWell(group[i], rank, size)) {
      status = absl::InvalidArgumentError(
          absl::StrCat(Name(group[i].kind), " of rank ", rank,
                       ": in and out overlap, and not as a collective in place has them"));
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("collective ", i, " of ", group.size(), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace bucketd::agent
