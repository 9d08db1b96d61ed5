// Costs that are off, as measured ones are.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "passes/cost/costs.h"
#include "passes/io/fx_json.h"

namespace bucketd::testing {

// Factors between 1 - spread and 1 + spread, the same on every machine (splitmix64).
class Factors {
 public:
  Factors(uint64_t seed, double spread) : state_(seed), spread_(spread) {}
  double Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return 1.0 + spread_ * (2.0 * static_cast<double>(z >> 11) / 9007199254740992.0 - 1.0);
  }

 private:
  uint64_t state_;
  double spread_;
};

// Every node's time, every group's alpha and bandwidth, and every figure of the profile off by up
// to `spread` of it, each for itself.
inline absl::StatusOr<Costs> PerturbedCosts(const CapturedGraph& captured, CostProfile profile,
                                            uint64_t seed, double spread) {
  Factors factors(seed, spread);
  StatedCosts stated = captured.costs;
  for (double& us : stated.node_us) us *= factors.Next();
  std::vector<std::pair<double, double>> of_group;
  for (size_t g = 0; g < captured.graph.groups().size(); ++g) {
    const double alpha = factors.Next();
    of_group.emplace_back(alpha, factors.Next());
  }
  for (size_t c = 0; c < stated.links.size(); ++c) {
    const auto& [alpha, rate] =
        of_group[static_cast<size_t>(captured.graph.collectives()[c].group)];
    stated.links[c].alpha_us *= alpha;
    stated.links[c].busbw_bytes_per_s *= rate;
  }
  for (double* figure :
       {&profile.gamma_us, &profile.hbm_bytes_per_s, &profile.copy_launch_us,
        &profile.overlap_slowdown, &profile.host_us_per_kernel, &profile.host_us_per_collective}) {
    *figure *= factors.Next();
  }
  profile.name = absl::StrCat(profile.name, "/", seed);
  return Costs::FromFile(captured.graph, stated, profile);
}

}  // namespace bucketd::testing
