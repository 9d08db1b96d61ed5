#include "gpu_agent/comm/ring_transfer.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/uio.h>

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr size_t kStagingBytes = 128 << 10;  // reduced while it is in a near cache
constexpr int64_t kDirectBytes = 4 << 10;    // shorter copies go through staging: fewer calls
constexpr int64_t kCallBytes = 1 << 20;      // of one call, so that neither direction starves
constexpr int64_t kOwnBytes = 128 << 10;     // of an own part at a time
constexpr size_t kMaxParts = 32;             // of one call

}  // namespace

std::string NeighbourOf(const RingLinks& links, RingSide side) {
  const bool right = (side == RingSide::kOut) == (links.order == RingOrder::kNccl);
  return absl::StrCat("rank ", (links.rank + (right ? 1 : links.size - 1)) % links.size, ", the ",
                      right ? "right" : "left", " neighbour");
}

absl::Status NeighbourGone(const RingLinks& links, RingSide side, int error) {
  return absl::UnavailableError(absl::StrCat(NeighbourOf(links, side), " of rank ", links.rank,
                                             ", closed the connection", error == 0 ? "" : ": ",
                                             error == 0 ? "" : std::strerror(error)));
}

RingTransfer::RingTransfer(RingLinks& links, absl::Span<const Collective> group,
                           int64_t max_segment, SteadyTime deadline)
    : links_(links),
      group_(group),
      schedule_(group, links.rank, links.size, links.order, max_segment),
      deadline_(deadline) {
  if (links.staging.empty()) links.staging.resize(kStagingBytes);
  const auto scratch = static_cast<size_t>(schedule_.scratch_bytes());
  if (links.scratch.size() < scratch) links.scratch.resize(scratch);
  Enter(outgoing_, Side::kOut, schedule_.First(outgoing_.at));
  Enter(incoming_, Side::kIn, schedule_.First(incoming_.at));
}

absl::Status RingTransfer::Run() {
  while (!outgoing_.end || !incoming_.end) {
    ASSIGN_OR_RETURN(const bool sent, Send());
    ASSIGN_OR_RETURN(const bool received, Receive());
    if (sent || received || CopyOwnPart()) continue;
    RETURN_IF_ERROR(Sleep());
  }
  while (CopyOwnPart()) {
  }
  return absl::OkStatus();
}

// `walk` stands at a position or behind the last; from there to the next piece that has bytes.
void RingTransfer::Enter(Walk& walk, Side side, bool exists) const {
  for (; exists; exists = schedule_.Next(walk.at)) {
    walk.piece = side == Side::kOut ? schedule_.Outgoing(walk.at, links_.scratch.data())
                                    : schedule_.Incoming(walk.at, links_.scratch.data());
    walk.done = 0;
    if (walk.piece.bytes > 0) return;
  }
  walk.end = true;
}

void RingTransfer::Advance(Walk& walk, Side side, int64_t bytes) const {
  walk.done += bytes;
  if (walk.remaining() == 0) Enter(walk, side, schedule_.Next(walk.at));
}

// Bytes of the piece that are there: what it sends was received one step before.
int64_t RingTransfer::Sendable(const Walk& outgoing) const {
  if (outgoing.at.step == 0 || incoming_.end) return outgoing.remaining();
  RingPosition source = outgoing.at;
  --source.step;
  if (incoming_.at > source) return outgoing.remaining();
  return incoming_.at == source ? incoming_.done - outgoing.done : 0;
}

// Bytes of the piece that have a place: scratch is free again once it has been sent.
int64_t RingTransfer::Receivable() const {
  if (!incoming_.piece.scratch || outgoing_.end || outgoing_.at > incoming_.at) {
    return incoming_.remaining();
  }
  if (outgoing_.at < incoming_.at) return 0;
  return std::max<int64_t>(outgoing_.done - incoming_.done, 0);
}

absl::StatusOr<bool> RingTransfer::Send() {
  iovec parts[kMaxParts];
  size_t count = 0;
  int64_t total = 0;
  for (Walk walk = outgoing_; !walk.end && count < kMaxParts && total < kCallBytes;) {
    const int64_t bytes = std::min(Sendable(walk), kCallBytes - total);
    if (bytes == 0) break;
    // sendmsg only reads, but iovec serves both directions.
    parts[count++] = {.iov_base = const_cast<std::byte*>(walk.piece.from + walk.done),
                      .iov_len = static_cast<size_t>(bytes)};
    total += bytes;
    Advance(walk, Side::kOut, bytes);
  }
  if (count == 0) return false;
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(links_.to.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return Gone(Side::kOut, errno);
  }
  for (int64_t left = sent; left > 0;) {
    const int64_t bytes = std::min(left, outgoing_.remaining());
    Advance(outgoing_, Side::kOut, bytes);
    left -= bytes;
  }
  return sent > 0;
}

absl::StatusOr<bool> RingTransfer::Receive() {
  bool progress = UseStaged();
  if (!WantsInput()) return progress;
  if (ReadsDirectly()) {
    ASSIGN_OR_RETURN(const int64_t got, Read(incoming_.piece.to + incoming_.done,
                                             std::min(incoming_.remaining(), kCallBytes)));
    if (got > 0) Advance(incoming_, Side::kIn, got);
    return progress || got > 0;
  }
  // A part of an element may be left: less than 16 bytes.
  if (links_.staged_begin > 0) {
    std::memmove(links_.staging.data(), links_.staging.data() + links_.staged_begin,
                 links_.staged_end - links_.staged_begin);
    links_.staged_end -= links_.staged_begin;
    links_.staged_begin = 0;
  }
  ASSIGN_OR_RETURN(const int64_t got,
                   Read(links_.staging.data() + links_.staged_end,
                        static_cast<int64_t>(links_.staging.size() - links_.staged_end)));
  links_.staged_end += static_cast<size_t>(got);
  progress = UseStaged() || progress;
  return progress || got > 0;
}

// Bytes read; 0: there are none now.
absl::StatusOr<int64_t> RingTransfer::Read(std::byte* to, int64_t bytes) {
  const ssize_t got = recv(links_.from.get(), to, static_cast<size_t>(bytes), MSG_DONTWAIT);
  if (got > 0) return got;
  if (got == 0) return Gone(Side::kIn, 0);
  if (errno == EAGAIN || errno == EINTR) return 0;
  return Gone(Side::kIn, errno);
}

bool RingTransfer::UseStaged() {
  bool progress = false;
  while (!incoming_.end) {
    const auto staged = static_cast<int64_t>(links_.staged_end - links_.staged_begin);
    int64_t bytes = std::min(staged, Receivable());
    if (incoming_.piece.reduce != nullptr) bytes -= bytes % incoming_.piece.item;
    if (bytes == 0) break;
    const std::byte* received = links_.staging.data() + links_.staged_begin;
    if (incoming_.piece.reduce != nullptr) {
      Reduce(received, bytes);
    } else {
      std::memcpy(incoming_.piece.to + incoming_.done, received, static_cast<size_t>(bytes));
    }
    links_.staged_begin += static_cast<size_t>(bytes);
    Advance(incoming_, Side::kIn, bytes);
    progress = true;
  }
  if (links_.staged_begin == links_.staged_end) links_.staged_begin = links_.staged_end = 0;
  return progress;
}

void RingTransfer::Reduce(const std::byte* received, int64_t bytes) const {
  const RingPiece& piece = incoming_.piece;
  std::byte* to = piece.to + incoming_.done;
  const int64_t count = bytes / piece.item;
  piece.reduce(received, piece.own + incoming_.done, to, count);
  if (piece.divide != nullptr) piece.divide(to, count, links_.size);
}

bool RingTransfer::WantsInput() const {
  return !incoming_.end && links_.staged_end - links_.staged_begin < links_.staging.size();
}

bool RingTransfer::ReadsDirectly() const {
  return links_.staged_begin == links_.staged_end && incoming_.piece.reduce == nullptr &&
         incoming_.remaining() >= kDirectBytes;
}

// A slab of an all-gather's own part to its place in the output. False if there is none left.
bool RingTransfer::CopyOwnPart() {
  for (; own_member_ < group_.size(); ++own_member_, own_done_ = 0) {
    const Collective& member = group_[own_member_];
    if (!Gathers(member.kind)) continue;
    const int64_t part = InputBytes(member, links_.size);
    const auto* from = static_cast<const std::byte*>(member.in);
    auto* to = static_cast<std::byte*>(member.out) + part * links_.rank;
    if (from == to || own_done_ == part) continue;
    const int64_t bytes = std::min(part - own_done_, kOwnBytes);
    std::memcpy(to + own_done_, from + own_done_, static_cast<size_t>(bytes));
    own_done_ += bytes;
    return true;
  }
  return false;
}

absl::Status RingTransfer::Sleep() {
  pollfd waits[3] = {{.fd = links_.wake.get(), .events = POLLIN, .revents = 0},
                     {.fd = -1, .events = POLLIN, .revents = 0},
                     {.fd = -1, .events = 0, .revents = 0}};
  if (WantsInput()) waits[1].fd = links_.from.get();
  if (!outgoing_.end) {
    // Without events poll still tells that the neighbour has gone.
    waits[2].fd = links_.to.get();
    if (Sendable(outgoing_) > 0) waits[2].events = POLLOUT;
  }
  const bool over = SteadyNow() >= deadline_;
  const int ready = poll(waits, 3, MillisecondsUntil(deadline_));
  if (waits[0].revents != 0) return links_.health.status();
  if (ready == 0 && over) return Late();
  if (ready > 0 && (waits[2].revents & (POLLERR | POLLHUP)) != 0) return Gone(Side::kOut, 0);
  return absl::OkStatus();
}

absl::Status RingTransfer::Gone(Side side, int error) const {
  RETURN_IF_ERROR(links_.health.status());
  return NeighbourGone(links_, side, error);
}

absl::Status RingTransfer::Late() const {
  const bool out = !outgoing_.end && Sendable(outgoing_) > 0;
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", links_.rank, " waited too long for ",
                   NeighbourOf(links_, out ? Side::kOut : Side::kIn),
                   out ? ", which takes nothing" : ", which sends nothing"));
}

}  // namespace bucketd::agent
