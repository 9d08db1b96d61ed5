#include "tests/bench/service_sides.h"

#include <algorithm>
#include <cmath>

namespace bucketd {

Interval MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  double below = 0;  // P(at most k of n tosses)
  double term = std::pow(0.5, static_cast<double>(n));
  size_t k = 0;
  while (k + 1 < n / 2 && below + term <= 0.025) {
    below += term;
    term *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  const size_t cut = k == 0 ? 0 : k - 1;
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return {values[cut], median, values[n - 1 - cut]};
}

}  // namespace bucketd
