#include "passes/base/cancellation.h"

namespace bucketd {
namespace {

thread_local const std::atomic<bool>* of_this_thread = nullptr;

}  // namespace

CancellationScope::CancellationScope(const std::atomic<bool>& cancelled) {
  of_this_thread = &cancelled;
}
CancellationScope::~CancellationScope() { of_this_thread = nullptr; }

bool IsCancelled() {
  return of_this_thread != nullptr && of_this_thread->load(std::memory_order_relaxed);
}

}  // namespace bucketd
