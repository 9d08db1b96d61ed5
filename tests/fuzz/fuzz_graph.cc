// Graphs on the wire.
#include "passes/io/proto_io.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bucketd;
  const auto graph = GraphFromBytes(fuzz::View(data, size), fuzz::Limits());
  if (graph.ok()) fuzz::CheckGraph(*graph);
  return 0;
}
