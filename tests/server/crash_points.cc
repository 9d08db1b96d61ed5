// Linked into a server, which then dies where a test says: the file named by CRASH_POINTS is an
// Order. Replicas share it, each with its number in CRASH_POINTS_OF, and one of them obeys.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include <sys/mman.h>

#include "server/store/crash_point.h"

namespace bucketd {
namespace {

// tests/faults/crash_table.py writes the same: the number of the order last, when the rest is
// there.
struct Order {
  std::atomic<int32_t> number;  // 0: none; another one with each order
  std::atomic<int32_t> done;    // the number of the order that was obeyed
  int32_t replica;              // 0: whoever comes there first
  // Places to be passed in this order by one thread, between " > "; it dies at the last.
  std::array<char, 500> places;
};

int32_t OwnNumber() {
  int32_t number = 0;
  const char* text = std::getenv("CRASH_POINTS_OF");
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : 0;
}

Order* MapOrder() {
  const char* path = std::getenv("CRASH_POINTS");
  const int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* mapped = mmap(nullptr, sizeof(Order), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<Order*>(mapped);
}

}  // namespace

void CrashPoint(const char* place) {
  static Order* const order = MapOrder();
  static const int32_t own = OwnNumber();
  if (order == nullptr) return;
  const int32_t number = order->number.load();
  if (number == 0 || (order->replica != 0 && order->replica != own)) return;
  thread_local int32_t followed = 0;  // the order, and how far it was followed
  thread_local absl::string_view left;
  if (followed != number) {
    followed = number;
    left = order->places.data();
  }
  const size_t end = left.find(" > ");
  if (left.substr(0, end) != place) return;
  if (end != absl::string_view::npos) {
    left.remove_prefix(end + 3);
    return;
  }
  int32_t before = number - 1;
  if (!order->done.compare_exchange_strong(before, number)) return;
  kill(getpid(), SIGKILL);
  pause();  // until it has come
}

}  // namespace bucketd
