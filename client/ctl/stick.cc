#include "client/ctl/stick.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/io/plan_file.h"

namespace bucketd::ctl {
namespace {

Chosen Replaced(Plan fresh, const std::string& why) {
  return {fresh, std::move(fresh), absl::StrCat("the old plan is not kept: ", why),
          Json::Object({{"kept", false}, {"why", why}})};
}

}  // namespace

absl::StatusOr<Chosen> StickTo(const Input& input, const PlanOptions& options,
                               const StickArgs& args, Plan fresh) {
  if (args.plan.empty()) return Chosen{fresh, std::move(fresh), "", std::nullopt};
  if (!(args.gain_percent >= 0.0 && args.gain_percent <= 100.0)) {
    return absl::OutOfRangeError(
        absl::StrCat("--stick-gain: is ", args.gain_percent, ", expected 0 to 100 percent"));
  }
  ASSIGN_OR_RETURN(const PlanFile file, ReadPlanFile(args.plan));
  const Plan& old = file.plan;
  const Graph& graph = input.captured.graph;
  const absl::Status fits = CheckPlan(input, args.plan, old);
  const std::string why_not = fits.ok() ? WhyNotPinned(graph, input.costs, options, old, fresh)
                                        : std::string(fits.message());
  if (!why_not.empty()) return Replaced(std::move(fresh), why_not);
  const int64_t threshold_ppm = std::llround(args.gain_percent * 1e4);
  ASSIGN_OR_RETURN(const ReplanVerdict verdict,
                   JudgeReplan(graph, old, fresh, input.costs, threshold_ppm));
  const std::string gain = absl::StrFormat(
      "the new plan takes %s in place of %s, a gain of %.3f %%; more than %g %% is asked for",
      Duration(verdict.fresh_ps), Duration(verdict.pinned_ps),
      static_cast<double>(verdict.gain_ppm) * 1e-4, args.gain_percent);
  Chosen chosen;
  if (verdict.replace) {
    chosen = Replaced(std::move(fresh), gain);
  } else {
    chosen = {UnderCostsOf(graph, input.costs, fresh, old), old,
              absl::StrCat("the old plan is kept: ", gain), Json::Object({{"kept", true}})};
  }
  chosen.json->Set("old_us", Json::Us(verdict.pinned_ps))
      .Set("new_us", Json::Us(verdict.fresh_ps))
      .Set("gain_ppm", verdict.gain_ppm);
  return chosen;
}

}  // namespace bucketd::ctl
