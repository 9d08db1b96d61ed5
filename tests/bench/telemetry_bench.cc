// What a bucket's record costs: the trainer that writes it, with an agent that reads and with none,
// and the agent. Processor time of the thread, so that other load does not count.
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"

#include "gpu_agent/telemetry/collector.h"
#include "gpu_agent/telemetry/writer.h"
#include "passes/base/types.h"
#include "tests/temp_folder.h"

namespace bucketd::agent {
namespace {

class Ignore : public CollectorEvents {
 public:
  void Opened(int /*ring*/) override {}
  void Refused(const std::string& /*why*/) override {}
  void Ran(int /*ring*/, const RingReader& /*reader*/,
           const std::vector<RunRecord>& records) override {
    benchmark::DoNotOptimize(records.size());
  }
  void Closed(int /*ring*/, const std::string& /*why*/) override {}
};

RunRecord OneRun() {
  RunRecord record;
  record.bytes = 1 << 20;
  record.kind = static_cast<uint8_t>(CollectiveKind::kAllGather);
  record.dtype = static_cast<uint8_t>(DType::kBF16);
  record.link = kNoLink;
  return record;
}

void WriteAll(benchmark::State& state, RingWriter& writer) {
  const RunRecord record = OneRun();
  for (auto _ : state) writer.Write(record);
  state.counters["dropped"] =
      static_cast<double>(writer.dropped()) / static_cast<double>(state.iterations());
}

// The ring is full all the time.
void BM_WriteWithoutAnAgent(benchmark::State& state) {
  const TempFolder folder;
  const auto writer = *RingWriter::Create("bench", folder.path() + "/agent");
  WriteAll(state, *writer);
}
BENCHMARK(BM_WriteWithoutAnAgent);

// Some records find room, and a look at the connection each second is in it.
void BM_WriteToAnAgent(benchmark::State& state) {
  Ignore events;
  CollectorOptions options;
  const TempFolder folder;
  options.socket = folder.path() + "/agent";
  const auto collector = *Collector::Start(options, events);
  const auto writer = *RingWriter::Create("bench", options.socket);
  WriteAll(state, *writer);
}
BENCHMARK(BM_WriteToAnAgent);

// Every record finds room: the pages are there, the lines are not in a cache.
void BM_WriteARingFull(benchmark::State& state) {
  const RunRecord record = OneRun();
  for (auto _ : state) {
    state.PauseTiming();
    const auto writer = *RingWriter::Create("bench", "/nowhere", kMostRingRecords);
    state.ResumeTiming();
    for (uint32_t i = 0; i < kMostRingRecords; ++i) writer->Write(record);
  }
  state.SetItemsProcessed(state.iterations() * kMostRingRecords);
}
BENCHMARK(BM_WriteARingFull)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace bucketd::agent

BENCHMARK_MAIN();
