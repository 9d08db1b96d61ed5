// Preloaded by tests/run.sh --full: threads begin and end late, and calls on sockets and unlocks
// take a while, each at random. What only holds while everybody is quick fails under it.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <random>

#include <sys/socket.h>
#include <sys/syscall.h>

namespace {

// Not by sleep_for and its kin: those may be what a test replaces.
void Sleep(uint64_t microseconds) {
  const timespec time{0, static_cast<int64_t>(microseconds) * 1000};  // below a second
  syscall(SYS_nanosleep, &time, nullptr);
}

// One time in `one_in`, for up to `most_us`.
void Delay(uint64_t one_in, uint64_t most_us) {
  thread_local std::minstd_rand random(static_cast<uint64_t>(
      std::chrono::steady_clock::now().time_since_epoch().count() + syscall(SYS_gettid)));
  if (random() % one_in == 0) Sleep(random() % most_us);
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

struct Task {
  void* (*run)(void*);
  void* argument;
};

void* RunLate(void* task) {
  const std::unique_ptr<Task> mine(static_cast<Task*>(task));
  Delay(2, 80'000);
  void* const result = mine->run(mine->argument);
  Delay(2, 30'000);
  return result;
}

template <typename Call>
auto Slowly(const Call& call) {
  Delay(60, 12'000);
  const auto result = call();
  Delay(60, 12'000);
  return result;
}

}  // namespace

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) noexcept {
  static const auto real = Real<decltype(&pthread_create)>("pthread_create");
  auto task = std::make_unique<Task>(Task{run, argument});
  const int error = real(thread, attributes, RunLate, task.get());
  if (error == 0) static_cast<void>(task.release());
  return error;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto real = Real<decltype(&pthread_mutex_unlock)>("pthread_mutex_unlock");
  const int error = real(mutex);
  Delay(3000, 8000);
  return error;
}

ssize_t send(int socket, const void* bytes, size_t size, int flags) {
  static const auto real = Real<decltype(&send)>("send");
  return Slowly([&] { return real(socket, bytes, size, flags); });
}
ssize_t recv(int socket, void* bytes, size_t size, int flags) {
  static const auto real = Real<decltype(&recv)>("recv");
  return Slowly([&] { return real(socket, bytes, size, flags); });
}
ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static const auto real = Real<decltype(&sendmsg)>("sendmsg");
  return Slowly([&] { return real(socket, message, flags); });
}
ssize_t recvmsg(int socket, msghdr* message, int flags) {
  static const auto real = Real<decltype(&recvmsg)>("recvmsg");
  return Slowly([&] { return real(socket, message, flags); });
}
int connect(int socket, const sockaddr* address, socklen_t size) {
  static const auto real = Real<decltype(&connect)>("connect");
  return Slowly([&] { return real(socket, address, size); });
}

}  // extern "C"
