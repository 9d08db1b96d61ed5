// Profiler traces, plain and packed: what is read is joined, with itself as another rank as well,
// and a profile is fitted to what comes of it. What is a step of FSDP2 becomes graphs.
#include <utility>
#include <vector>

#include "passes/cost/measured_fit.h"
#include "passes/cost/trace_join.h"
#include "passes/io/fsdp_graph.h"
#include "passes/io/fsdp_trace.h"
#include "passes/io/torch_trace.h"
#include "tests/fuzz/fuzz_target.h"

namespace bucketd::fuzz {
namespace {

void CheckTrace(const RankTrace& trace) {
  for (const TracedCollective& c : trace.collectives) {
    Check(c.group >= 0 && static_cast<size_t>(c.group) < trace.groups.size(), "a group is there");
    Check(c.bytes >= 0 && c.picoseconds >= 0 && c.launches >= 1, "a collective has a size");
  }
}

void CheckJoin(const std::vector<RankTrace>& traces, bool partial) {
  JoinOptions options;
  options.partial = partial;
  const auto join = JoinTraces(traces, options);
  if (!join.ok()) return;
  std::vector<ClassSamples> classes;
  for (const JoinedCollective& seen : join->observations) {
    Check(Validate(seen.of).ok(), "an observation has a class");
    Check(seen.bytes > 0 && seen.picoseconds > 0 && seen.launches >= 1,
          "an observation has a size");
    Check(seen.picoseconds <= seen.longest_ps, "the shortest span is no longer than the longest");
    classes.push_back(
        {seen.of, {{seen.bytes, seen.picoseconds, seen.launches, seen.communicator}}});
  }
  FitOptions fit;
  fit.min_samples = 1;
  fit.quorum = 1;
  fit.quorum_factor = 4.0;
  Check(FitProfile(CostProfile(), classes, fit).profile.gamma_us >= 0.0, "a fit has a gamma");
}

void CheckStep(absl::string_view bytes) {
  const auto step = ReadFsdpTrace(bytes, "fuzz", int64_t{1} << 20);
  if (!step.ok()) return;
  Check(step->ranks > 1 && step->total_ps >= 0, "a step has ranks and a length");
  for (const bool keeps : {false, true}) {
    const auto graph = GraphOfFsdpStep(*step, {"fuzz", keeps, 0});
    if (graph.ok()) Check(!graph->graph.collectives().empty(), "a step gathers");
  }
}

}  // namespace
}  // namespace bucketd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bucketd;
  fuzz::CheckStep(fuzz::View(data, size));
  auto trace = ReadTorchTrace(fuzz::View(data, size), "fuzz", int64_t{1} << 20);
  if (!trace.ok()) return 0;
  fuzz::CheckTrace(*trace);
  fuzz::CheckJoin({*trace}, /*partial=*/true);
  RankTrace other = *trace;
  other.rank = trace->rank == 0 ? 1 : 0;
  fuzz::CheckJoin({*std::move(trace), std::move(other)}, /*partial=*/false);
  return 0;
}
