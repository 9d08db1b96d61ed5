// Figures in words for people: pages, tables, messages. Not for machines: they get numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace bucketd {

// "812 B", "1.5 KiB", "12.3 MiB", "2.00 GiB".
std::string BytesInWords(int64_t bytes);

// "350 ms", "42 s", "3 min 5 s", "2 h 10 min", "4 d 3 h"; what is negative counts as 0.
std::string SpanInWords(int64_t milliseconds);

// "0, 3, 7-9". REQUIRES: ascending.
std::string RangesInWords(absl::Span<const uint32_t> ascending);

// "99.1 %"; "-" if there is no whole.
std::string ShareInWords(int64_t part, int64_t whole);

// The one of `known` that differs in the fewest letters, if those are few; else "". For "did you
// mean".
std::string NearestName(const std::string& name, const std::vector<std::string>& known);

}  // namespace bucketd
