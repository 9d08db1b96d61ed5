#include "server/rpc/session_guard.h"

#include <dlfcn.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "server/rpc/frame_budget.h"

namespace bucketd {
namespace {

struct Session {
  FrameBudget budget{FrameLimits(), std::chrono::steady_clock::now()};
  bool over = false;
};

void Forget(void*, void* session, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Session*>(session);
}

// Lives and dies with the session of TLS. As it, for one thread at a time. Null: out of memory.
Session* SessionOf(SSL* ssl) {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, Forget);
  if (void* known = SSL_get_ex_data(ssl, index)) return static_cast<Session*>(known);
  auto session = std::make_unique<Session>();
  if (SSL_set_ex_data(ssl, index, session.get()) != 1) return nullptr;
  return session.release();
}

class Listener {
 public:
  void Set(std::function<void()> on_closed) {
    const absl::MutexLock lock(&mutex_);
    on_closed_ = std::move(on_closed);
  }
  void Closed() {
    const absl::MutexLock lock(&mutex_);
    if (on_closed_ != nullptr) on_closed_();
  }

 private:
  absl::Mutex mutex_;
  std::function<void()> on_closed_ ABSL_GUARDED_BY(mutex_);
};

// Of the process, as SSL_read is. Never destroyed: gRPC's threads may read until the end.
Listener& TheListener() {
  static auto* const listener = new Listener;
  return *listener;
}

// False: the session is to end.
bool Decrypted(SSL* ssl, absl::string_view bytes) {
  Session* const session = SessionOf(ssl);
  if (session == nullptr) return true;
  if (session->over) return false;
  if (session->budget.Take(bytes, std::chrono::steady_clock::now())) return true;
  session->over = true;
  TheListener().Closed();
  return false;
}

}  // namespace

void GuardSessions(std::function<void()> on_closed) { TheListener().Set(std::move(on_closed)); }

}  // namespace bucketd

extern "C" int SSL_read(SSL* ssl, void* buffer, int size) {
  static const auto read =
      reinterpret_cast<int (*)(SSL*, void*, int)>(dlsym(RTLD_NEXT, "SSL_read"));
  const int bytes = read(ssl, buffer, size);
  if (bytes <= 0 || SSL_is_server(ssl) == 0) return bytes;
  const absl::string_view content(static_cast<const char*>(buffer), static_cast<size_t>(bytes));
  if (bucketd::Decrypted(ssl, content)) return bytes;
  // What SSL_get_error looks at: this is no "try again".
  ERR_raise_data(ERR_LIB_USER, 1, "more HTTP/2 frames that nobody answers than are allowed");
  return -1;
}
