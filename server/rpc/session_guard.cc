#include "server/rpc/session_guard.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "server/rpc/client_frames.h"

namespace bucketd {
namespace {

struct Session {
  ClientFrames frames;
  bool over = false;
};

void Forget(void*, void* session, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Session*>(session);
}

class Guard {
 public:
  void Set(std::function<void()> on_closed, ConnectionLimits limits) {
    const absl::MutexLock lock(&mutex_);
    on_closed_ = std::move(on_closed);
    limits_ = std::move(limits);
  }
  void Closed() {
    const absl::MutexLock lock(&mutex_);
    if (on_closed_ != nullptr) on_closed_();
  }
  // A peer by itself: which host it comes from is not known here.
  std::unique_ptr<Session> NewSession() {
    const absl::MutexLock lock(&mutex_);
    const std::string peer = absl::StrCat("session ", ++last_);
    return std::make_unique<Session>(
        Session{ClientFrames({FrameLimits(), limits_.calls, limits_.unfinished},
                             std::chrono::steady_clock::now(), peer)});
  }

 private:
  absl::Mutex mutex_;
  std::function<void()> on_closed_ ABSL_GUARDED_BY(mutex_);
  ConnectionLimits limits_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Of the process, as the functions are. Never destroyed: gRPC's threads may read until the end.
Guard& TheGuard() {
  static auto* const guard = new Guard;
  return *guard;
}

// Lives and dies with the session of TLS. As it, for one thread at a time. Null: out of memory.
Session* SessionOf(SSL* ssl) {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, Forget);
  if (void* known = SSL_get_ex_data(ssl, index)) return static_cast<Session*>(known);
  std::unique_ptr<Session> session = TheGuard().NewSession();
  if (SSL_set_ex_data(ssl, index, session.get()) != 1) return nullptr;
  return session.release();
}

// look(frames): the verdict on what came or went. False: the session is to end.
template <typename Look>
bool GoesOn(SSL* ssl, const Look& look) {
  Session* const session = SessionOf(ssl);
  if (session == nullptr) return true;
  if (session->over) return false;
  if (look(session->frames) == ClientFrames::Verdict::kGoOn) return true;
  session->over = true;
  TheGuard().Closed();
  return false;
}

// -1, with what SSL_get_error looks at: this is no "try again".
int End() {
  ERR_raise_data(
      ERR_LIB_USER, 1,
      "more HTTP/2 frames that nobody answers, more calls, or more of unfinished messages and "
      "answers, than are allowed");
  return -1;
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

void GuardSessions(std::function<void()> on_closed, ConnectionLimits limits) {
  TheGuard().Set(std::move(on_closed), std::move(limits));
}

}  // namespace bucketd

extern "C" {

// gRPC calls it once for each context of a server, and for no client's: it is what makes sessions
// with clients' certificates resumable. Each of the three takes one way: tickets of TLS 1.2, ids of
// sessions, and tickets of TLS 1.3, which would be ids then and be sent in vain.
int SSL_CTX_set_session_id_context(SSL_CTX* context, const unsigned char* id, unsigned size) {
  static const auto set = bucketd::Real<int (*)(SSL_CTX*, const unsigned char*, unsigned)>(
      "SSL_CTX_set_session_id_context");
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  return set(context, id, size);
}

int SSL_read(SSL* ssl, void* buffer, int size) {
  static const auto read = bucketd::Real<int (*)(SSL*, void*, int)>("SSL_read");
  const int bytes = read(ssl, buffer, size);
  if (bytes <= 0 || SSL_is_server(ssl) == 0) return bytes;
  const absl::string_view content(static_cast<const char*>(buffer), static_cast<size_t>(bytes));
  const bool goes_on = bucketd::GoesOn(ssl, [content, size](bucketd::ClientFrames& frames) {
    return frames.Received(content, static_cast<size_t>(size), std::chrono::steady_clock::now());
  });
  return goes_on ? bytes : bucketd::End();
}

int SSL_write(SSL* ssl, const void* buffer, int size) {
  static const auto write = bucketd::Real<int (*)(SSL*, const void*, int)>("SSL_write");
  const int bytes = write(ssl, buffer, size);
  if (bytes <= 0 || SSL_is_server(ssl) == 0) return bytes;
  const absl::string_view content(static_cast<const char*>(buffer), static_cast<size_t>(bytes));
  const bool goes_on = bucketd::GoesOn(ssl, [content](bucketd::ClientFrames& frames) {
    frames.Sent(content);
    return frames.HasSent(/*stuck=*/false);  // only the socket knows
  });
  return goes_on ? bytes : bucketd::End();
}

}  // extern "C"
