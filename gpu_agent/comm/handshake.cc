#include "gpu_agent/comm/handshake.h"

#include <poll.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/socket.h>

namespace bucketd::agent {
namespace {

constexpr char kMagic[] = "bktring1";
constexpr size_t kMagicBytes = 8;
constexpr size_t kNonceBytes = 32;
constexpr size_t kGroupBytes = 128;
constexpr size_t kIdentityAt = kMagicBytes + kNonceBytes;
constexpr size_t kHelloBytes = kIdentityAt + 8 + 4 + 4 + kGroupBytes;
constexpr size_t kCodeBytes = 32;
constexpr char kAcceptedByte = 'A';
constexpr int kDrainCalls = 16;

void PutLittleEndian(uint64_t value, size_t bytes, std::string& to) {
  for (size_t i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

uint64_t LittleEndianAt(const std::string& from, size_t at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(from[at + i])) << (8 * i);
  }
  return value;
}

// Empty if there is no randomness to be had.
std::string HelloOf(const RingIdentity& self) {
  unsigned char nonce[kNonceBytes];
  if (RAND_bytes(nonce, kNonceBytes) != 1) return "";
  std::string hello(kMagic, kMagicBytes);
  for (const unsigned char byte : nonce) hello.push_back(static_cast<char>(byte));
  PutLittleEndian(static_cast<uint64_t>(self.epoch), 8, hello);
  PutLittleEndian(static_cast<uint64_t>(self.rank), 4, hello);
  PutLittleEndian(static_cast<uint64_t>(self.size), 4, hello);
  hello += self.group;
  hello.resize(kHelloBytes, '\0');
  return hello;
}

bool IsHello(const std::string& message) {
  return message.compare(0, kMagicBytes, kMagic, kMagicBytes) == 0;
}

RingIdentity IdentityIn(const std::string& hello) {
  const std::string group = hello.substr(kIdentityAt + 16, kGroupBytes);
  return {.group = group.substr(0, group.find('\0')),
          .epoch = static_cast<int64_t>(LittleEndianAt(hello, kIdentityAt, 8)),
          .rank = static_cast<int>(LittleEndianAt(hello, kIdentityAt + 8, 4)),
          .size = static_cast<int>(LittleEndianAt(hello, kIdentityAt + 12, 4))};
}

bool SameCode(const std::string& a, const std::string& b) {
  return a.size() == kCodeBytes && b.size() == kCodeBytes &&
         CRYPTO_memcmp(a.data(), b.data(), kCodeBytes) == 0;
}

}  // namespace

std::string Describe(const RingIdentity& identity) {
  return absl::StrCat("rank ", identity.rank, " of ", identity.size, ", group ", identity.group,
                      ", epoch ", identity.epoch);
}

Handshake::Handshake(Fd fd, Role role, const RingIdentity& self, int peer, const std::string& token)
    : fd_(std::move(fd)),
      role_(role),
      self_(self),
      peer_(peer),
      token_(token),
      own_hello_(HelloOf(self)) {
  if (own_hello_.empty()) {
    End(Verdict::kMismatch, absl::InternalError("no random bytes for a handshake"));
  } else if (role == Role::kClient) {
    output_ = own_hello_;
    expected_ = kHelloBytes + kCodeBytes;
  } else {
    expected_ = kHelloBytes;
  }
}

// Closing over bytes that were not read resets the connection, and what is under way to the peer
// goes with it: why it was refused.
Handshake::~Handshake() {
  if (!fd_) return;
  shutdown(fd_.get(), SHUT_WR);
  char bytes[4096];
  for (int i = 0; i < kDrainCalls; ++i) {
    if (recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT) <= 0) return;
  }
}

Verdict Handshake::Advance() {
  for (;;) {
    while (!output_.empty()) {
      const ssize_t sent = send(fd_.get(), output_.data(), output_.size(), MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return Verdict::kPending;
      if (sent < 0) return Gone(std::strerror(errno));
      output_.erase(0, static_cast<size_t>(sent));
    }
    if (expected_ == 0) return verdict_;
    char bytes[kHelloBytes + kCodeBytes];
    const ssize_t got = recv(fd_.get(), bytes, expected_ - input_.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Verdict::kPending;
    if (got <= 0) return Gone(got == 0 ? "closed by the other side" : std::strerror(errno));
    input_.append(bytes, static_cast<size_t>(got));
    if (input_.size() == expected_) Receive(std::exchange(input_, ""));
  }
}

// A peer with another token goes as soon as it sees this side's code, and proves nothing.
Verdict Handshake::Gone(const char* why) {
  expected_ = 0;
  output_.clear();
  const std::string text =
      absl::StrCat(Describe(self_), ": a connection ended in its handshake: ", why);
  if (role_ == Role::kServer && !peer_hello_.empty()) {
    End(Verdict::kRefused, absl::UnauthenticatedError(
                               absl::StrCat(text, "; it has another token, or its time was over")));
  } else {
    End(Verdict::kStranger, absl::UnavailableError(text));
  }
  return verdict_;
}

short Handshake::events() const { return output_.empty() ? POLLIN : POLLOUT; }

void Handshake::Receive(std::string message) {
  expected_ = 0;
  if (role_ == Role::kServer) {
    if (peer_hello_.empty()) {
      OnHello(std::move(message));
    } else {
      OnProof(message);
    }
  } else if (peer_hello_.empty()) {
    OnReply(message);
  } else if (message[0] == kAcceptedByte) {
    End(Verdict::kAccepted, absl::OkStatus());
  } else {
    End(Verdict::kStranger, absl::UnavailableError("a peer ended its handshake oddly"));
  }
}

// Server: proves itself first. The code is of no use elsewhere, since both nonces are in it.
void Handshake::OnHello(std::string message) {
  if (!IsHello(message)) {
    End(Verdict::kStranger, absl::UnauthenticatedError(absl::StrCat(
                                Describe(self_), ": a stranger connected and was refused")));
    return;
  }
  peer_hello_ = std::move(message);
  output_ = own_hello_ + CodeOf(Role::kServer);
  expected_ = kCodeBytes;
}

// Client. A server of another epoch gets its proof all the same, to know whom it refuses.
void Handshake::OnReply(const std::string& message) {
  peer_hello_ = message.substr(0, kHelloBytes);
  if (!IsHello(message) || peer_hello_ == own_hello_) {
    End(Verdict::kStranger,
        absl::UnauthenticatedError(
            absl::StrCat(Describe(self_), ": no rank listens where rank ", peer_, " should")));
    return;
  }
  if (!SameCode(message.substr(kHelloBytes), CodeOf(Role::kServer))) {
    End(Verdict::kRefused,
        absl::UnauthenticatedError(absl::StrCat(Describe(self_), ": what listens as rank ", peer_,
                                                " does not know this group's token")));
    return;
  }
  output_ = CodeOf(Role::kClient);
  Judge();
  if (verdict_ == Verdict::kAccepted) expected_ = 1;
}

void Handshake::OnProof(const std::string& message) {
  if (!SameCode(message, CodeOf(Role::kClient))) {
    End(Verdict::kRefused,
        absl::UnauthenticatedError(
            absl::StrCat(Describe(self_), ": refused a connection that does not know the token")));
    return;
  }
  Judge();
  if (verdict_ == Verdict::kAccepted) output_ = kAcceptedByte;
}

void Handshake::Judge() {
  const RingIdentity other = IdentityIn(peer_hello_);
  const absl::Status error = absl::FailedPreconditionError(absl::StrCat(
      Describe(self_), " does not match ", Describe(other), ": expected rank ", peer_));
  if (other.group != self_.group || other.epoch < self_.epoch) {
    End(Verdict::kStale, error);
  } else if (other.epoch != self_.epoch || other.size != self_.size || other.rank != peer_) {
    End(Verdict::kMismatch, error);
  } else {
    End(Verdict::kAccepted, absl::OkStatus());
  }
}

void Handshake::End(Verdict verdict, absl::Status error) {
  verdict_ = verdict;
  error_ = std::move(error);
}

std::string Handshake::CodeOf(Role role) const {
  const bool client = role_ == Role::kClient;
  const std::string text =
      absl::StrCat(role == Role::kClient ? "client" : "server", client ? own_hello_ : peer_hello_,
                   client ? peer_hello_ : own_hello_);
  unsigned char code[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  if (HMAC(EVP_sha256(), token_.data(), static_cast<int>(token_.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), code,
           &bytes) == nullptr) {
    return "";  // equal to no code
  }
  return std::string(reinterpret_cast<const char*>(code), bytes);
}

}  // namespace bucketd::agent
