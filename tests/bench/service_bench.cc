// What a plan that is cached costs the server, against a bare echo server that sends the same bytes
// by the same API, and how 2,000 connections at once get one new plan. tests/bench/service.sh
// builds and runs it; it exits 1 when the server is dearer than --limit times the echo server.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <sys/resource.h>

#include "tests/bench/redis_load.h"
#include "tests/bench/service_graphs.h"
#include "tests/bench/service_load.h"
#include "tests/bench/service_process.h"
#include "tests/bench/service_sides.h"
#include "tests/temp_folder.h"

namespace bucketd {
namespace {

struct Flags {
  std::string bucketd = "build/bin/bucketd";
  std::string echo = "build/bin/echo_server";
  std::string graphs = "tests/data/graphs";
  std::string redis = "redis-server";
  int rounds = 15;
  double seconds = 0.25;  // a server and round
  double limit = 1.25;
  int connections = 2000;
  int storms = 5;
  bool no_redis = false;
};

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags) {
    // Servers on one core, callers on another.
    const bool two = std::thread::hardware_concurrency() > 1;
    server_cpu_ = two ? 0 : -1;
    PinThisProcess(two ? 1 : -1);
    address_ = absl::StrCat("unix:", folder_, "/bucketd");
    server_ = std::make_unique<Process>(
        std::vector<std::string>{flags.bucketd, "--listen", address_, "--http", "",
                                 "--max-inline-bytes", "67108864", "--log-level", "warn"},
        absl::StrCat(folder_, "/log"), server_cpu_);
  }

  // False: above the limit, or something failed.
  bool Size(const std::string& file, int repeat, const std::string& mode);
  bool StormOfConnections(const std::string& file, const std::string& mode);

 private:
  bool Cell(const BenchRequest& plan, const std::string& reply, const Process& echo,
            const std::string& echo_address, int outstanding);
  void RedisCell(const Process& redis, const std::string& path, size_t bytes, int outstanding);
  std::unique_ptr<Process> StartEcho(const std::string& reply, const std::string& address) {
    const std::string file = absl::StrCat(folder_, "/reply-", reply.size());
    std::ofstream(file, std::ios::binary) << reply;
    return std::make_unique<Process>(std::vector<std::string>{flags_.echo, address, file},
                                     absl::StrCat(folder_, "/log"), server_cpu_);
  }
  std::string Reply(const BenchRequest& plan) {
    const std::shared_ptr<grpc::Channel> channel = FreshChannel(address_);
    channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20));
    CallOnce(channel, plan.with_graph);
    return CallOnce(channel, plan.request);  // a hit
  }

  const Flags& flags_;
  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
  int server_cpu_ = -1;
  std::string address_;
  std::unique_ptr<Process> server_;
};

bool Bench::Cell(const BenchRequest& plan, const std::string& reply, const Process& echo,
                 const std::string& echo_address, int outstanding) {
  Side ours{server_.get(), std::make_unique<Load>(address_, outstanding), {}, {}, 0};
  Side bare{&echo, std::make_unique<Load>(echo_address, outstanding), {}, {}, 0};
  std::vector<double> ratios;
  for (int round = -1; round < flags_.rounds; ++round) {
    if (round == 0) {  // the first was to warm up
      ours.cpu.clear(), ours.micros.clear();
      bare.cpu.clear(), bare.micros.clear();
    }
    // Who goes first takes turns: the machine may be getting busier or quieter.
    Side* const order[] = {round % 2 == 0 ? &ours : &bare, round % 2 == 0 ? &bare : &ours};
    for (Side* side : order) side->Round(plan.request, reply.size(), flags_.seconds);
    if (round >= 0) ratios.push_back(ours.cpu.back() / bare.cpu.back());
  }
  const Interval ratio = MedianOf(ratios);
  const bool good = ratio.low <= flags_.limit && ours.failed == 0 && bare.failed == 0;
  std::printf("%8zu %5d   %7.1f %7.1f   %5.2f [%.2f, %.2f] %s  %s   %s\n", reply.size(),
              outstanding, MedianOf(ours.cpu).median, MedianOf(bare.cpu).median, ratio.median,
              ratio.low, ratio.high, good ? "ok " : "HIGH", ours.Latency().c_str(),
              bare.Latency().c_str());
  if (ours.failed + bare.failed > 0) {
    absl::PrintF("         failed calls: bucketd %d, echo %d\n", ours.failed, bare.failed);
  }
  std::fflush(stdout);
  return good;
}

void Bench::RedisCell(const Process& redis, const std::string& path, size_t bytes,
                      int outstanding) {
  std::vector<double> cpu;
  std::vector<float> micros;
  for (int round = 0; round < 5; ++round) {
    const double before = redis.CpuMicros();
    LoadResult result = RedisGets(path, bytes, outstanding, flags_.seconds);
    cpu.push_back((redis.CpuMicros() - before) / static_cast<double>(result.requests));
    micros.insert(micros.end(), result.micros.begin(), result.micros.end());
  }
  const double p50 = Percentile(micros, 50);
  std::printf("%8zu %5d   %7.1f   Redis GET   %39.0f %7.0f\n", bytes, outstanding,
              MedianOf(cpu).median, p50, Percentile(micros, 99));
  std::fflush(stdout);
}

bool Bench::Size(const std::string& file, int repeat, const std::string& mode) {
  const absl::StatusOr<BenchRequest> plan =
      MakeBenchRequest(absl::StrCat(flags_.graphs, "/", file), repeat, mode, "");
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
    return false;
  }
  const std::string reply = Reply(*plan);
  if (reply.empty()) return false;
  std::printf("# %s: a reply of %zu bytes, a request of %zu\n", plan->name.c_str(), reply.size(),
              plan->request.size());
  const std::string echo_address = absl::StrCat("unix:", folder_, "/echo-", reply.size());
  const std::unique_ptr<Process> echo = StartEcho(reply, echo_address);
  bool good = true;
  for (const int outstanding : {1, 64, 512}) {
    good &= Cell(*plan, reply, *echo, echo_address, outstanding);
  }
  if (flags_.no_redis) return good;
  const std::string path = absl::StrCat(folder_, "/redis-", reply.size());
  const Process redis({flags_.redis, "--port", "0", "--unixsocket", path, "--save", "",
                       "--appendonly", "no", "--dir", folder_},
                      absl::StrCat(folder_, "/log"), server_cpu_);
  bool set = false;
  for (int i = 0; !set && i < 200 && redis.running(); ++i) {
    usleep(20'000);
    set = RedisSet(path, reply);
  }
  if (!set) {
    std::printf("%8s       Redis: not installed\n", "");
    return good;
  }
  for (const int outstanding : {1, 64, 512}) RedisCell(redis, path, reply.size(), outstanding);
  return good;
}

bool Bench::StormOfConnections(const std::string& file, const std::string& mode) {
  std::vector<double> ratios, ours, bare;
  bool good = true;
  for (int storm = 0; storm < flags_.storms; ++storm) {
    // Nobody has asked for this tenant's plan, and its graph is not here either.
    const absl::StatusOr<BenchRequest> plan = MakeBenchRequest(
        absl::StrCat(flags_.graphs, "/", file), 1, mode, absl::StrCat("storm-", storm));
    if (!plan.ok()) return false;
    const StormResult mine = Storm(address_, flags_.connections, plan->request, plan->with_graph);
    const std::string reply = Reply(*plan);
    const std::string echo_address = absl::StrCat("unix:", folder_, "/storm-", storm);
    const std::unique_ptr<Process> echo = StartEcho(reply, echo_address);
    FreshChannel(echo_address)
        ->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const StormResult floor = Storm(echo_address, flags_.connections, plan->request, "");
    ours.push_back(mine.wall_seconds);
    bare.push_back(floor.wall_seconds);
    ratios.push_back(mine.wall_seconds / floor.wall_seconds);
    good &= mine.failed == 0 && floor.failed == 0 && mine.computed == 1 &&
            mine.plans == flags_.connections;
    if (storm == 0 || !good) {
      std::printf(
          "# storm: %d fresh connections for one new plan: %d plans, %d computed, %d failed\n",
          flags_.connections, mine.plans, mine.computed, mine.failed + floor.failed);
    }
  }
  const Interval ratio = MedianOf(ratios);
  std::printf("storm wall: bucketd %.3f s, echo %.3f s, ratio %.2f [%.2f, %.2f] (goal 1.3)\n",
              MedianOf(ours).median, MedianOf(bare).median, ratio.median, ratio.low, ratio.high);
  return good;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures what a cached plan costs the server against a bare echo server.");
  app.add_option("--bucketd", flags.bucketd)->capture_default_str();
  app.add_option("--echo", flags.echo)->capture_default_str();
  app.add_option("--graphs", flags.graphs)->capture_default_str();
  app.add_option("--redis", flags.redis)->capture_default_str();
  app.add_option("--rounds", flags.rounds, "A cell; 6 at least for an interval of 95 %")
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "A server and round")->capture_default_str();
  app.add_option("--limit", flags.limit, "Of CPU a request, over the echo server's")
      ->capture_default_str();
  app.add_option("--connections", flags.connections, "Of the storm")->capture_default_str();
  app.add_option("--storms", flags.storms, "0: none")->capture_default_str();
  app.add_flag("--no-redis", flags.no_redis);
  CLI11_PARSE(app, argc, argv);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  Bench bench(flags);
  std::printf(
      "# server CPU a request (us), %d rounds of %.2f s each, in turns; ratio: median [95 %%]; "
      "latency p50 p99 (us)\n"
      "%8s %5s   %7s %7s   %19s      %15s   %15s\n",
      flags.rounds, flags.seconds, "bytes", "calls", "bucketd", "echo", "ratio", "bucketd", "echo");
  bool good = bench.Size("llama3_8b_fsdp8.fw.json.gz", 1, "overlap");
  good &= bench.Size("llama3_70b_fsdp64.joint.json.gz", 2, "transformer_block");
  if (flags.storms > 0) {
    good &= bench.StormOfConnections("llama3_8b_fsdp8.fw.json.gz", "overlap");
  }
  if (!good) std::printf("above the limit, or failed\n");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) { return bucketd::Main(argc, argv); }
