// Costs that are off, as measured ones are.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "passes/cost/costs.h"
#include "passes/io/fx_json.h"

namespace bucketd::testing {

// How costs are off. All have the standard deviation of a uniform factor of 1 +- spread.
enum class Perturbation {
  kUniform,    // every figure for itself, uniform between 1 - spread and 1 + spread
  kLognormal,  // every figure for itself, e to a normal variable: some are far off
  kGrouped,    // all kernels by one factor, all that a group's wires take by another
  kCompute,    // kernels alone, each for itself, uniform
  kWires,      // groups' latencies and bandwidths alone, uniform
};

// Factors around 1, the uniform ones the same on every machine (splitmix64).
class Factors {
 public:
  Factors(uint64_t seed, double spread, Perturbation how = Perturbation::kUniform)
      : state_(seed), spread_(spread), how_(how) {}
  double Next() { return how_ == Perturbation::kLognormal ? Lognormal() : Uniform(); }

 private:
  double Lognormal() {
    double normal = -6.0;  // twelve uniform numbers from 0 to 1 have variance 1
    for (int i = 0; i < 12; ++i) normal += (Uniform() - 1.0 + spread_) / (2.0 * spread_);
    return std::exp(spread_ / std::sqrt(3.0) * normal);
  }
  double Uniform() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return 1.0 + spread_ * (2.0 * static_cast<double>(z >> 11) / 9007199254740992.0 - 1.0);
  }

  uint64_t state_;
  double spread_;
  Perturbation how_;
};

// Every node's time, every group's alpha and bandwidth, and every figure of the profile, as far as
// `how` moves them.
inline absl::StatusOr<Costs> PerturbedCosts(const CapturedGraph& captured, CostProfile profile,
                                            uint64_t seed, double spread,
                                            Perturbation how = Perturbation::kUniform) {
  const bool grouped = how == Perturbation::kGrouped;
  const bool kernels = how != Perturbation::kWires, wires = how != Perturbation::kCompute;
  Factors factors(seed, spread, how);
  StatedCosts stated = captured.costs;
  const double of_all = grouped ? factors.Next() : 1.0;
  for (double& us : stated.node_us) us *= grouped ? of_all : kernels ? factors.Next() : 1.0;
  std::vector<std::pair<double, double>> of_group;
  for (size_t g = 0; g < captured.graph.groups().size(); ++g) {
    const double alpha = wires ? factors.Next() : 1.0;
    of_group.emplace_back(alpha, grouped ? 1.0 / alpha : wires ? factors.Next() : 1.0);
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
    if (kernels && wires && !grouped) *figure *= factors.Next();
  }
  profile.name = absl::StrCat(profile.name, "/", seed);
  return Costs::FromFile(captured.graph, stated, profile);
}

}  // namespace bucketd::testing
