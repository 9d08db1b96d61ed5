#include "gpu_agent/telemetry/writer.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace bucketd::agent {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLongestPause = 64 * kSecond;

// Within some milliseconds, and for the price of a load.
int64_t RoughNow() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * kSecond + now.tv_nsec;
}

absl::Status NoMemory() {
  return absl::UnavailableError(absl::StrCat("no memory for telemetry: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingWriter>> RingWriter::Create(absl::string_view job,
                                                               absl::string_view agent,
                                                               uint32_t records) {
  if (agent.empty() || agent.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("agent's socket ", agent, ": expected 1 to ",
                                                   sizeof(sockaddr_un::sun_path) - 1, " bytes"));
  }
  RingHeader header;
  header.records = records;
  if (job.size() > kMostJobBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", job, ": expected at most ", kMostJobBytes, " bytes"));
  }
  std::copy(job.begin(), job.end(), header.job.begin());
  Fd memory(memfd_create("bucketd-telemetry", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return NoMemory();
  // All of it at once: later, a page that is missing would stop the trainer, and one that cannot be
  // had would end it.
  errno = posix_fallocate(memory.get(), 0, static_cast<off_t>(RingBytes(records)));
  if (errno != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoMemory();
  }
  void* const at = mmap(nullptr, RingBytes(records), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, memory.get(), 0);
  if (at == MAP_FAILED) return NoMemory();
  std::memcpy(at, &header, sizeof(header));
  std::unique_ptr<RingWriter> writer(
      new RingWriter(std::move(memory), static_cast<RingHeader*>(at), records, std::string(agent)));
  const std::lock_guard lock(writer->mutex_);
  writer->Meet(RoughNow());
  return writer;
}

RingWriter::RingWriter(Fd memory, RingHeader* header, uint32_t records, std::string agent)
    : memory_(std::move(memory)),
      header_(header),
      records_(reinterpret_cast<RunRecord*>(header + 1)),
      mask_(records - 1),
      agent_(std::move(agent)) {}

RingWriter::~RingWriter() { munmap(header_, RingBytes(static_cast<uint32_t>(mask_ + 1))); }

uint8_t RingWriter::AddLink(const RingLink& link) {
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < links_; ++i) {
    if (std::memcmp(&header_->links[i], &link, sizeof(link)) == 0) return static_cast<uint8_t>(i);
  }
  if (links_ == kRingLinks) return kNoLink;
  header_->links[links_] = link;
  std::atomic_ref(header_->link_count).store(++links_, std::memory_order_release);
  return static_cast<uint8_t>(links_ - 1);
}

bool RingWriter::AddPlan(const RingPlan& plan) {
  const std::lock_guard lock(mutex_);
  if (AddArena(plan.plan, plan.arena_bytes)) return true;
  if (plans_.size() == kRingPlans) return false;
  header_->plans[plans_.size()] = plan;
  plans_.push_back(plan);
  std::atomic_ref(header_->plan_count)
      .store(static_cast<uint32_t>(plans_.size()), std::memory_order_release);
  return true;
}

void RingWriter::EndPlan(uint64_t plan, int64_t arena_bytes) {
  const std::lock_guard lock(mutex_);
  AddArena(plan, -arena_bytes);
}

// To a plan that is there already.
bool RingWriter::AddArena(uint64_t plan, int64_t bytes) {
  for (size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i].plan != plan) continue;
    plans_[i].arena_bytes += bytes;
    std::atomic_ref(header_->plans[i].arena_bytes)
        .store(plans_[i].arena_bytes, std::memory_order_relaxed);
    return true;
  }
  return false;
}

void RingWriter::Write(const RunRecord& record) {
  const std::lock_guard lock(mutex_);
  const int64_t now = RoughNow();
  if (now >= look_at_ns_) Meet(now);
  // An agent that writes nonsense there makes the ring full, and nothing else.
  const uint64_t tail = std::atomic_ref(header_->tail).load(std::memory_order_acquire);
  if (head_ - tail > mask_) {
    std::atomic_ref(header_->dropped).store(++dropped_, std::memory_order_relaxed);
    return;
  }
  records_[head_ & mask_] = record;
  std::atomic_ref(header_->head).store(++head_, std::memory_order_release);
}

void RingWriter::Lose(uint64_t records) {
  const std::lock_guard lock(mutex_);
  dropped_ += records;
  std::atomic_ref(header_->dropped).store(dropped_, std::memory_order_relaxed);
}

uint64_t RingWriter::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

bool RingWriter::connected() const {
  const std::lock_guard lock(mutex_);
  return static_cast<bool>(connection_);
}

// Hears of the agent's end, or looks for one.
void RingWriter::Meet(int64_t now_ns) {
  char byte = 0;
  if (connection_) {
    const ssize_t got = recv(connection_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      pause_ns_ = 0;
      look_at_ns_ = now_ns + kSecond;
      return;
    }
    connection_ = Fd();
    // An agent that has hung up before the first look takes no ring of this trainer's: the next
    // one may.
    look_at_ns_ = offered_ns_ + pause_ns_;
    if (now_ns < look_at_ns_) return;
  }
  if (!Offer()) connection_ = Fd();
  offered_ns_ = now_ns;
  pause_ns_ = std::clamp(2 * pause_ns_, kSecond, kLongestPause);
  look_at_ns_ = now_ns + (connection_ ? kSecond : pause_ns_);
}

// Connects and hands the memory over, or does not; neither blocks.
bool RingWriter::Offer() {
  connection_ = Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, agent_.data(), agent_.size());
  if (!connection_ || connect(connection_.get(), reinterpret_cast<const sockaddr*>(&address),
                              sizeof(address)) != 0) {
    return false;
  }
  char version = static_cast<char>(kRingVersion);
  iovec data{&version, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = memory_.get();
  std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  return sendmsg(connection_.get(), &message, MSG_NOSIGNAL) == 1;
}

}  // namespace bucketd::agent
