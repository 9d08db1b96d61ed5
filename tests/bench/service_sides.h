// Servers that are measured in turns, and what is said of many rounds of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"

#include "tests/bench/service_load.h"
#include "tests/bench/service_process.h"

namespace bucketd {

// Of the medians of all samples like this one, 95 in a hundred lie between the two: order
// statistics of the binomial distribution, nothing assumed of the ratios'.
struct Interval {
  double low = 0, median = 0, high = 0;
};

Interval MedianOf(std::vector<double> values);

// A server under load, and what it took.
struct Side {
  const Process* process = nullptr;
  std::unique_ptr<Load> load;
  std::vector<float> micros;
  std::vector<double> cpu;  // microseconds a request, by round
  int64_t failed = 0;

  void Round(const std::string& request, size_t reply_bytes, double seconds) {
    const double before = process->CpuMicros();
    LoadResult result = load->Run(request, reply_bytes, seconds);
    cpu.push_back((process->CpuMicros() - before) / static_cast<double>(result.requests));
    micros.insert(micros.end(), result.micros.begin(), result.micros.end());
    failed += result.failed;
  }
  std::string Latency() {
    const double p50 = Percentile(micros, 50);
    return absl::StrFormat("%7.0f %7.0f", p50, Percentile(micros, 99));
  }
};

}  // namespace bucketd
