// How far random ladders and sweeps over profiles go: all the way in an optimised build; under a
// sanitizer, which looks for something else and is ten times slower, a tenth of the seeds, one
// profile and every third kind of step or captured graph.
#ifndef BUCKETD_TESTS_PASSES_LADDER_H_
#define BUCKETD_TESTS_PASSES_LADDER_H_

#include <cstddef>
#include <cstdint>

#include <absl/types/span.h>

namespace bucketd::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

// Of `all` seeds, those that are run.
constexpr uint32_t Seeds(uint32_t all) { return kSanitized ? (all + 9) / 10 : all; }

// Of what all seeds must find, what those that are run must find: half of their part, since few
// differ more.
constexpr int64_t Share(int64_t all) { return kSanitized ? all / 20 : all; }

// From one kind of step, or captured graph, to the next.
inline constexpr size_t kStride = kSanitized ? 3 : 1;

// The first under a sanitizer, else all.
template <typename Items>
auto Ladder(const Items& items) {
  return absl::MakeConstSpan(items).subspan(0, kSanitized ? 1 : items.size());
}

}  // namespace bucketd::testing

#endif  // BUCKETD_TESTS_PASSES_LADDER_H_
