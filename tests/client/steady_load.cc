// A C++ client that asks servers for plans without a pause, until its input ends; then says how
// many calls of each kind it made and what went wrong with any of them, as JSON.
//
//   steady_load ADDRESSES GRAPH
//
// Hits; misses, each with a new graph that has to be sent; and jobs of three ranks that have to
// meet.
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/planner_client.h"

#include "passes/io/fx_json.h"
#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "proto/graph.pb.h"

namespace bucketd::client {
namespace {

constexpr uint32_t kRanks = 3;

class SteadyLoad {
 public:
  SteadyLoad(const std::string& addresses, const v1::Graph& graph, const v1::Mesh& mesh)
      : addresses_(addresses), graph_(graph), mesh_(mesh) {}

  void Run() {
    std::array<std::thread, 2 + kRanks> threads;
    threads[0] = std::thread([this] { Ask(hits_, [](int64_t) { return int64_t{1}; }); });
    threads[1] = std::thread([this] { Ask(misses_, [](int64_t n) { return 1'000'000 + n; }); });
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      threads[2 + rank] = std::thread([this, rank] { Train(rank); });
    }
    char byte = 0;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    over_ = true;
    for (std::thread& thread : threads) thread.join();
  }

  void Print() {
    std::printf(
        "{\"hits\": %ld, \"misses\": %ld, \"jobs\": %ld, \"moves\": %ld, \"errors\": [%s]}\n",
        hits_.load(), misses_.load(), jobs_.load(), moves_.load(),
        absl::StrJoin(errors_, ", ").c_str());
  }

 private:
  // Another graph, of the same kind, for each number.
  PlanQuery QueryFor(int64_t number) const {
    v1::Graph graph = graph_;
    graph.mutable_nodes(graph.nodes_size() / 2)->set_flops(1000 + number);
    const std::string bytes = graph.SerializeAsString();
    PlanQuery query;
    query.digest = GraphDigest(*GraphFromBytes(bytes));
    query.mesh = mesh_;
    query.options.set_mode("greedy");
    query.deadline = std::chrono::minutes(2);
    query.graph = [bytes] { return bytes; };
    return query;
  }

  ClientOptions Options() {
    ClientOptions options;
    options.own_connection = true;
    options.log = [](absl::string_view) {};
    return options;
  }

  template <typename NumberOf>
  void Ask(std::atomic<int64_t>& count, NumberOf number_of) {
    PlannerClient client(addresses_, Options());
    while (!over_) {
      const absl::StatusOr<PlanReply> reply = client.GetPlan(QueryFor(number_of(count)));
      if (!reply.ok()) Failed(reply.status().ToString());
      ++count;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    moves_ += client.counters().moves;
  }

  // Each generation of a job begins when all ranks have the plan of the one before.
  void Train(uint32_t rank) {
    PlannerClient client(addresses_, Options());
    for (int64_t round = 0;; ++round) {
      if (rank == 0) ends_ = over_.load();
      begun_.arrive_and_wait();
      if (ends_) break;
      PlanQuery query = QueryFor(2'000'000 + round / 3);
      query.job = Job{.id = absl::StrCat("cxx-", round / 3),
                      .generation = static_cast<uint64_t>(round % 3),
                      .scope = "0/fw",
                      .ranks = {rank},
                      .size = kRanks};
      const absl::StatusOr<PlanReply> reply = client.GetPlan(query);
      if (!reply.ok()) Failed(absl::StrCat("rank ", rank, ": ", reply.status().ToString()));
      plans_[rank] = reply.ok() ? reply->sha256 : Digest{};
      begun_.arrive_and_wait();
      if (rank == 0) {
        ++jobs_;
        if (plans_[1] != plans_[0] || plans_[2] != plans_[0]) Failed("ranks have other plans");
      }
    }
    moves_ += client.counters().moves;
  }

  void Failed(const std::string& what) {
    const std::lock_guard lock(mutex_);
    errors_.push_back(absl::StrCat("\"", absl::CHexEscape(what), "\""));
  }

  const std::string addresses_;
  const v1::Graph graph_;
  const v1::Mesh mesh_;
  std::atomic<bool> over_{false};
  std::atomic<int64_t> hits_{0}, misses_{0}, jobs_{0}, moves_{0};
  std::barrier<> begun_{kRanks};
  bool ends_ = false;
  std::array<Digest, kRanks> plans_{};
  std::mutex mutex_;
  std::vector<std::string> errors_;
};

int Main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: steady_load ADDRESSES GRAPH\n");
    return 2;
  }
  const absl::StatusOr<CapturedGraph> captured = ReadCapturedGraphFile(argv[2]);
  if (!captured.ok()) {
    std::fprintf(stderr, "%s\n", captured.status().ToString().c_str());
    return 2;
  }
  v1::Graph graph;
  GraphToProto(Normalize(captured->graph)->graph, graph);
  v1::Mesh mesh;
  MeshToProto(captured->mesh, mesh);
  SteadyLoad load(argv[1], graph, mesh);
  load.Run();
  load.Print();
  return 0;
}

}  // namespace
}  // namespace bucketd::client

int main(int argc, char** argv) { return bucketd::client::Main(argc, argv); }
