// What mutual TLS costs: a cached plan over it beside the same without, and beside a bare echo
// server with the same TLS; and a storm of fresh connections. tests/bench/cluster.sh makes the
// certificates and runs it. Prints rows of a table: what, measured, wanted.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>

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
  std::string tls;
  int rounds = 9;
  double seconds = 0.25;
  int connections = 2000;
  int storms = 3;
};

constexpr double kWanted = 1.25;  // of the echo server's CPU a request

// One that nobody has now.
std::string FreeAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, raw, length) != 0 || getsockname(fd, raw, &length) != 0) std::exit(1);
  close(fd);
  return absl::StrCat("localhost:", ntohs(address.sin_port));
}

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags) {
    const bool two = std::thread::hardware_concurrency() > 1;
    server_cpu_ = two ? 0 : -1;
    PinThisProcess(two ? 1 : -1);
    const auto file = [&](const std::string& name) { return absl::StrCat(flags.tls, "/", name); };
    secured_ =
        Start(secured_address_,
              {"--tls-certificate-file", file("server.pem"), "--tls-key-file", file("server.key"),
               "--tls-client-ca-file", file("ca.pem"), "--identities-file", file("who.toml")});
    plain_ = Start(plain_address_, {});
  }

  bool Hits();
  bool Storms();

 private:
  std::unique_ptr<Process> Start(const std::string& address, const std::vector<std::string>& more) {
    std::vector<std::string> argv = {flags_.bucketd,       "--listen", address,       "--http", "",
                                     "--max-inline-bytes", "67108864", "--log-level", "warn"};
    argv.insert(argv.end(), more.begin(), more.end());
    return std::make_unique<Process>(argv, Log(), server_cpu_);
  }
  std::unique_ptr<Process> StartEcho(const std::string& reply, const std::string& address) {
    const std::string file = absl::StrCat(folder_, "/reply");
    std::ofstream(file, std::ios::binary) << reply;
    auto echo = std::make_unique<Process>(
        std::vector<std::string>{flags_.echo, address, file, flags_.tls}, Log(), server_cpu_);
    FreshChannel(address, flags_.tls)->WaitForConnected(Soon());
    return echo;
  }
  std::string Log() const { return absl::StrCat(folder_, "/log"); }
  static std::chrono::system_clock::time_point Soon() {
    return std::chrono::system_clock::now() + std::chrono::seconds(20);
  }
  // Of a plan that is there afterwards.
  std::string Reply(const BenchRequest& plan, const std::string& address, const std::string& tls) {
    const std::shared_ptr<grpc::Channel> channel = FreshChannel(address, tls);
    channel->WaitForConnected(Soon());
    CallOnce(channel, plan.with_graph);
    return CallOnce(channel, plan.request);
  }
  absl::StatusOr<BenchRequest> Plan(const std::string& tenant) const {
    return MakeBenchRequest(absl::StrCat(flags_.graphs, "/llama3_8b_fsdp8.fw.json.gz"), 1,
                            "overlap", tenant);
  }
  bool Cell(const BenchRequest& plan, size_t reply_bytes, const Process& echo,
            const std::string& echo_address, int outstanding);

  const Flags& flags_;
  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
  int server_cpu_ = -1;
  const std::string secured_address_ = FreeAddress(), plain_address_ = FreeAddress();
  std::unique_ptr<Process> secured_, plain_;
};

bool Bench::Cell(const BenchRequest& plan, size_t reply_bytes, const Process& echo,
                 const std::string& echo_address, int outstanding) {
  const auto load = [&](const std::string& address, const std::string& tls) {
    return std::make_unique<Load>(address, outstanding, tls);
  };
  Side ours{secured_.get(), load(secured_address_, flags_.tls), {}, {}, 0};
  Side bare{&echo, load(echo_address, flags_.tls), {}, {}, 0};
  Side plain{plain_.get(), load(plain_address_, ""), {}, {}, 0};
  std::vector<double> over_echo, over_plain;
  for (int round = 0; round <= flags_.rounds; ++round) {
    Side* order[] = {&ours, &bare, &plain};
    if (round % 2 == 1) std::swap(order[0], order[1]);
    for (Side* side : order) side->Round(plan.request, reply_bytes, flags_.seconds);
    if (round == 0) {  // to warm up
      for (Side* side : order) side->cpu.clear();
      continue;
    }
    over_echo.push_back(ours.cpu.back() / bare.cpu.back());
    over_plain.push_back(ours.cpu.back() / plain.cpu.back());
  }
  const Interval ratio = MedianOf(over_echo);
  const int64_t failed = ours.failed + bare.failed + plain.failed;
  absl::PrintF(
      "| CPU of a hit over mutual TLS, %d bytes, %d calls under way: of the echo server's with the "
      "same TLS | %.2f [%.2f, %.2f] (%.0f us, echo %.0f us); %.2f of a hit without TLS | at most "
      "%.2f |\n",
      reply_bytes, outstanding, ratio.median, ratio.low, ratio.high, MedianOf(ours.cpu).median,
      MedianOf(bare.cpu).median, MedianOf(over_plain).median, kWanted);
  if (failed > 0) absl::PrintF("| of those, failed | %d | 0 |\n", failed);
  std::fflush(stdout);
  return ratio.median <= kWanted && failed == 0;
}

bool Bench::Hits() {
  const absl::StatusOr<BenchRequest> plan = Plan("");
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
    return false;
  }
  const std::string reply = Reply(*plan, secured_address_, flags_.tls);
  if (reply.empty() || Reply(*plan, plain_address_, "").size() != reply.size()) {
    std::fprintf(stderr, "no plan; see %s\n", flags_.tls.c_str());
    return false;
  }
  const std::string echo_address = FreeAddress();
  const std::unique_ptr<Process> echo = StartEcho(reply, echo_address);
  bool good = true;
  for (const int outstanding : {1, 64, 512}) {
    good &= Cell(*plan, reply.size(), *echo, echo_address, outstanding);
  }
  return good;
}

bool Bench::Storms() {
  std::vector<double> ratios, ours, bare;
  bool good = true;
  for (int storm = 0; storm < flags_.storms; ++storm) {
    const absl::StatusOr<BenchRequest> plan = Plan(absl::StrCat("storm-", storm));
    if (!plan.ok()) return false;
    const StormResult mine =
        Storm(secured_address_, flags_.connections, plan->request, plan->with_graph, flags_.tls);
    const std::string echo_address = FreeAddress();
    const std::unique_ptr<Process> echo =
        StartEcho(Reply(*plan, secured_address_, flags_.tls), echo_address);
    const StormResult floor =
        Storm(echo_address, flags_.connections, plan->request, "", flags_.tls);
    ours.push_back(mine.wall_seconds);
    bare.push_back(floor.wall_seconds);
    ratios.push_back(mine.wall_seconds / floor.wall_seconds);
    good &= mine.failed + floor.failed == 0 && mine.computed == 1;
    if (mine.failed + floor.failed > 0) {
      absl::PrintF("| of a storm, failed: bucketd, echo | %d, %d | 0 |\n", mine.failed,
                   floor.failed);
    }
  }
  const Interval ratio = MedianOf(ratios);
  absl::PrintF(
      "| %d fresh connections with mutual TLS at once, for one new plan: time, of the echo "
      "server's "
      "| %.2f [%.2f, %.2f] (%.2f s, echo %.2f s) | - |\n",
      flags_.connections, ratio.median, ratio.low, ratio.high, MedianOf(ours).median,
      MedianOf(bare).median);
  return good;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures what mutual TLS costs a cached plan, and connections.");
  app.add_option("--bucketd", flags.bucketd)->capture_default_str();
  app.add_option("--echo", flags.echo)->capture_default_str();
  app.add_option("--graphs", flags.graphs)->capture_default_str();
  app.add_option("--tls", flags.tls,
                 "Folder with ca.pem, server.pem, server.key, client.pem, client.key, who.toml")
      ->required();
  app.add_option("--rounds", flags.rounds, "A cell; 6 at least for an interval of 95 %")
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "A server and round")->capture_default_str();
  app.add_option("--connections", flags.connections, "Of a storm")->capture_default_str();
  app.add_option("--storms", flags.storms, "0: none")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  Bench bench(flags);
  bool good = bench.Hits();
  if (flags.storms > 0) good = bench.Storms() && good;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) { return bucketd::Main(argc, argv); }
