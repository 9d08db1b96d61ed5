// Captured-graph files, plain and packed.
#include "passes/io/fx_json.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bucketd;
  const auto captured = ReadCapturedGraph(fuzz::View(data, size), fuzz::Limits(), int64_t{1} << 20);
  if (!captured.ok()) return 0;
  fuzz::CheckGraph(captured->graph);
  if (captured->has_costs) {
    (void)Costs::FromFile(captured->graph, captured->costs, CostProfile());
  }
  (void)Costs::FromDeviceModel(captured->graph, captured->mesh, CostProfile());
  return 0;
}
