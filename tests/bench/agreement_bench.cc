// How rank agreement grows with the ranks of a scope: in process, callers as callbacks, no sockets.
//
//   agreement_bench [RANKS...]        default: 1000 10000 100000
//
// For each number of ranks, one row a case:
//   agree     all present the same; all get a plan of 20 KiB, pinned in a store in memory
//   one       the last rank presents another option; all get RANKS_DIFFER
//   each      every rank presents options of its own; the same
//   missing   one rank of a hundred does not come; the others get RANKS_MISSING at their deadline
// gather: CPU time of a call, parsing and key included, and of the agreement alone. held: bytes
// that the agreement allocates for a rank that waits. verdict: from the last call (or the deadline)
// to the last answer.
#include <malloc.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "prometheus/registry.h"
#include "spdlog/spdlog.h"

#include "proto/planner.pb.h"
#include "server/costs/cost_catalog.h"
#include "server/jobs/agreement.h"
#include "server/plans/read_plan_request.h"
#include "server/store/sqlite_store.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPlanBytes = 20 << 10;

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// A server without its network.
struct Planner {
  explicit Planner(const ServerOptions& o)
      : options(o),
        store(*SqliteStore::Open({})),
        agreement({broker, cache, graphs, intake, pins, timers, agreement_metrics, options,
                   planning, costs}) {}
  ~Planner() {
    timers.Stop();
    agreement.Stop();
  }

  const ServerOptions options;
  prometheus::Registry registry;
  ServerMetrics metrics{registry};
  AgreementMetrics agreement_metrics{registry};
  CostMetrics cost_metrics{registry};
  std::unique_ptr<SqliteStore> store;
  CostCatalog costs{*store, cost_metrics};
  PlanningSwitch planning{*store, /*durable=*/false, metrics.planning_enabled};
  PlanCache cache{int64_t{64} << 20, metrics};
  Quotas quotas{"", {}, registry};
  GraphStore graphs{int64_t{64} << 20, metrics, quotas};
  GraphIntake intake{options.intake, metrics};
  Timers timers;
  ComputeQueue compute_queue{1, 16};
  WorkerPool intake_pool{1, 16};
  PlanBroker broker{{cache, graphs, intake, compute_queue, intake_pool, timers, metrics, options,
                     quotas, ComputePlan}};
  Pins pins{*store, agreement_metrics, quotas, options.pin_ttl};
  Agreement agreement;
};

enum class Case { kAgree, kOneDiffers, kAllDiffer, kMissing };
constexpr const char* kCaseNames[] = {"agree", "one", "each", "missing"};

v1::GetPlanRequest RequestOf(Case which, uint32_t rank, uint32_t ranks) {
  v1::GetPlanRequest request;
  request.set_graph_digest(std::string(32, 'g'));
  v1::MeshDim& dim = *request.mutable_mesh()->add_dims();
  dim.set_name("dp");
  dim.set_size(ranks);
  dim.set_ranks_per_node(8);
  request.mutable_mesh()->set_device_type("cuda");
  // As many as an 8B model has.
  for (int i = 0; i < 291; ++i) {
    request.mutable_options()->add_parameter_order(absl::StrCat("model.layers.", i, ".weight"));
  }
  const bool differs =
      which == Case::kAllDiffer || (which == Case::kOneDiffers && rank + 1 == ranks);
  if (differs) request.mutable_options()->set_prefetch_forward(rank % 60'000 + 2);
  return request;
}

struct Row {
  double gather_us = 0.0;
  double agreement_us = 0.0;
  double bytes = 0.0;
  double verdict_ms = 0.0;
  double wall_ms = 0.0;
  double cpu_ms = 0.0;
  size_t answers = 0;
  std::string first;  // error
};

Row Measure(Case which, uint32_t ranks) {
  ServerOptions options;
  Planner planner(options);
  std::mutex mutex;
  std::condition_variable all;
  size_t answers = 0;
  std::string first;
  const size_t expected = which == Case::kMissing ? ranks - ranks / 100 : ranks;
  const auto done = [&](const PlanBroker::Answer& answer) {
    const std::lock_guard lock(mutex);
    if (!answer.ok() && first.empty()) first = std::string(answer.status().message());
    if (++answers == expected) all.notify_all();
  };
  // Whatever is fetched before all have come is there: the rest is not the agreement's time.
  for (const uint32_t rank : {0U, 1U}) {
    v1::GetPlanRequest message = RequestOf(which, rank, ranks);
    const std::string key = (*ReadPlanRequest(message, planner.costs))->key;
    planner.cache.Put(key, EncodePlanReply(std::string(kPlanBytes, 'p'), key));
  }
  JobCall job{.tenant = "",
              .id = "bench",
              .generation = 1,
              .scope = "0/0/fw",
              .ranks = {0},
              .size = ranks,
              .fresh = false};
  // Of the last caller's; the others have more time. A quarter of it is the margin for the answer.
  const std::chrono::milliseconds patience(which == Case::kMissing ? 1000 : 600'000);
  const Clock::time_point start = Clock::now();
  const double cpu_start = CpuSeconds();
  const size_t held_before = mallinfo2().uordblks;
  double in_agreement = 0.0;
  size_t held = 0;
  Clock::time_point last;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (which == Case::kMissing && rank % 100 == 99) continue;
    v1::GetPlanRequest message = RequestOf(which, rank, ranks);
    std::shared_ptr<PlanRequest> request = *ReadPlanRequest(message, planner.costs);
    job.ranks[0] = rank;
    if (rank + 1 == ranks || (which == Case::kMissing && rank + 2 == ranks)) {
      held = mallinfo2().uordblks - held_before;
      last = Clock::now();
    }
    const double before = CpuSeconds();
    const bool is_last = last != Clock::time_point();
    const auto deadline = Clock::now() + (is_last ? patience : std::chrono::minutes(10));
    planner.agreement.GetPlan(job, std::move(request), deadline, done);
    in_agreement += CpuSeconds() - before;
  }
  const double cpu_gathered = CpuSeconds();
  std::unique_lock lock(mutex);
  all.wait(lock, [&] { return answers == expected; });
  const Clock::time_point end = Clock::now();
  const Clock::time_point verdict_from = which == Case::kMissing ? last + patience * 3 / 4 : last;
  return {(cpu_gathered - cpu_start) / ranks * 1e6,
          in_agreement / ranks * 1e6,
          static_cast<double>(held) / ranks,
          Seconds(end - verdict_from) * 1e3,
          Seconds(end - start) * 1e3,
          (CpuSeconds() - cpu_start) * 1e3,
          answers,
          first.substr(0, 110)};
}

int Main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);
  std::vector<uint32_t> sizes;
  for (int i = 1; i < argc; ++i) {
    uint32_t ranks = 0;
    if (!absl::SimpleAtoi(argv[i], &ranks) || ranks < 100 || ranks > kMaxRanksOfScope) {
      fprintf(stderr, "%s: expected a number of ranks, 100 to %u\n", argv[i], kMaxRanksOfScope);
      return 2;
    }
    sizes.push_back(ranks);
  }
  if (sizes.empty()) sizes = {1000, 10'000, 100'000};
  printf("%-8s %8s %12s %14s %10s %11s %9s %9s\n", "case", "ranks", "gather us", "agreement us",
         "held B", "verdict ms", "wall ms", "cpu ms");
  for (const Case which : {Case::kAgree, Case::kOneDiffers, Case::kAllDiffer, Case::kMissing}) {
    for (const uint32_t ranks : sizes) {
      const Row row = Measure(which, ranks);
      printf("%-8s %8u %12.1f %14.1f %10.0f %11.1f %9.0f %9.0f  %s\n",
             kCaseNames[static_cast<size_t>(which)], ranks, row.gather_us, row.agreement_us,
             row.bytes, row.verdict_ms, row.wall_ms, row.cpu_ms, row.first.c_str());
      fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) { return bucketd::Main(argc, argv); }
