// Runs passes one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd {

struct PassRun {
  std::string pass;
  bool changed = false;
  int64_t run_ns = 0, verify_ns = 0;  // for tests/bench: what planning and what verifying takes
};
// Told of each pass that has run, with what it left.
using AfterPass = std::function<void(const PassRun&, const PassContext&, const Plan&)>;

class Pipeline {
 public:
  explicit Pipeline(std::vector<std::unique_ptr<Pass>> passes) : passes_(std::move(passes)) {}

  // The plan is verified after every pass. Errors name the pass and keep their code; a plan that is
  // not legal, or that changed although the pass denies it, is INTERNAL. `after` may be null.
  absl::Status Run(PassContext& context, Plan& plan, const AfterPass& after = nullptr) const;

 private:
  std::vector<std::unique_ptr<Pass>> passes_;
};

}  // namespace bucketd
