// cudasim: GPUs, CUDA streams and NCCL in this process, so that gpu_agent/cuda runs where no GPU
// is.
//
// Device time is a seeded discrete-event simulation. It goes on only while the program asks (event
// and stream queries, NCCL's polling): each such call runs a few steps, and the seed chooses which
// stream takes each. Bytes are moved by the tile kernels' own code and by the ring's reductions.
// What a real GPU would answer with lost work or garbage is a finding here: memory that is used
// after its free, or by two streams that nothing orders (vector clocks: whether or not it went
// wrong this time), calls that NCCL forbids, ranks whose collectives differ, deadlocks.
// The host reading device memory faults.
//
// One world at a time. Host threads are the program's own: what they do between two calls is not
// the seed's, and all of them together are one entity to the clocks.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "gpu_agent/cuda/nccl_api.h"
#include "tests/gpu_agent/cudasim/memory.h"
#include "tests/gpu_agent/cudasim/profiling.h"

namespace bucketd::agent::sim {

struct Options {
  uint64_t seed = 1;
  int devices = 2;
  // Collectives that fit on a GPU beside compute at once. The others wait, in any order.
  int resident = 1;
  // While the program asks once, the devices take less steps than these. Where they are few it asks
  // more often, which takes real time.
  uint64_t pace = 4;
  int64_t launch_ns = 0;  // of the devices' time that a launch of NCCL's takes the host
  std::function<int(int gpu)> nccl_version = nullptr;  // of its rank; null: one for all
  std::function<size_t(int gpu)> memory = nullptr;     // bytes of each; null: enough
  int taken = -1;              // the GPU that gives no context: another process has it alone
  int driver = 0;              // CUDA's version that it is for; 0: new enough
  int profiler_interface = 5;  // of NCCL's, for the plugin that NCCL_PROFILER_PLUGIN names
  bool foreign_nccl = false;   // not the one that the trainer's communicators are of
  // NCCL's answer to a window, by rank, some polls after the call. Its communicator is dead then.
  std::function<ncclResult_t(int rank)> window = nullptr;
  // Longer than this no call of NCCL's blocks: it is a finding, and the call returns.
  absl::Duration patience = absl::Seconds(40);
};

inline constexpr char kGate[] = "a gate";  // an op that waits for the host

// What a stream does next, once it comes to it.
struct Op {
  std::string what;
  Clock issued;                           // what the host had seen when it was enqueued
  std::function<bool()> ready = nullptr;  // null: at once
  std::function<void(const Toucher&)> run;
};

struct SimGraph;
struct SimStream;

struct Recording {
  bool done = false;
  Clock clock;
  int64_t at_ns = 0;
  SimGraph* graph = nullptr;  // it was recorded in a capture: it is never done, and marks these
  std::vector<size_t> nodes;
};

// What a capture has made: each node is enqueued anew at each replay.
struct SimGraph {
  struct Node {
    const SimStream* stream = nullptr;  // that it was captured on
    std::function<void(SimStream&)> enqueue;
    std::vector<size_t> after;
  };
  uint64_t id = 0;
  SimStream* origin = nullptr;
  bool ended = false;
  std::vector<Node> nodes;
  int handles = 1;                                // the graph, and what is launched of it
  std::vector<std::function<void()>> at_its_end;  // when all handles are destroyed
};

struct SimStream {
  size_t id = 0;
  int device = 0;
  int priority = 0;  // a lower number goes first
  bool destroyed = false;
  Clock clock;
  std::deque<Op> ops;
  SimGraph* capture = nullptr;
  std::vector<size_t> tips;  // nodes that the next one comes after
};

struct SimEvent {
  int device = 0;
  std::shared_ptr<Recording> recording;  // of its last record
};

class Nccl;

class World {
 public:
  explicit World(const Options& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The one that there is; null: calls answer that there is no GPU.
  static World* now();

  std::shared_ptr<const NcclApi> nccl_api() const;
  // A rank of the process group dies: its collectives stop, and nobody is told but by NCCL, after
  // some polls, if `peers_hear`.
  void KillRank(int rank, bool peers_hear);
  // Runs the devices until nothing can go on.
  void Drain();
  std::vector<std::string> findings();
  std::set<int> contexts();          // GPUs on which this process has a context
  size_t allocations();              // that nobody has freed
  size_t events();                   // that nobody has destroyed
  size_t communicators();            // that NCCL has not ended
  int64_t launches();                // of NCCL's, by all ranks
  std::vector<KernelRun> kernels();  // where a profiler plugin is told of them
  std::set<int> priorities();        // of all streams
  // How many were made on a GPU, freed ones too.
  int events_made(int gpu);
  int tables_made(int gpu);
  // What is enqueued on the stream, and on others that wait for it, becomes a graph. Meanwhile
  // whoever asks about this GPU what is done is a finding, but for threads that are beside captures
  // (cudaThreadExchangeStreamCaptureMode), and so is an event from outside.
  void BeginCapture(cudaStream_t stream);
  // A stream whose work the first one has not waited for is a finding.
  SimGraph* EndCapture(cudaStream_t stream);
  void Replay(const SimGraph& graph, cudaStream_t stream);
  void Hold(SimGraph& graph);
  void Destroy(SimGraph& graph);  // one of its handles
  // What happens when the program asks for the `step`th time, on its thread.
  void OnStep(int64_t step, std::function<void()> then);

  // The rest is for the fakes of CUDA and NCCL, which hold the lock.
  std::recursive_mutex& mutex() { return mutex_; }
  const Options& options() const { return options_; }
  Memory& memory() { return memory_; }
  Clock& host() { return host_; }
  void Find(const std::string& finding) { findings_.Add(finding); }
  bool capturing(int device) const;
  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }
  void Advance();  // a few steps

  SimStream* NewStream(int device);
  SimStream* Of(cudaStream_t stream);
  SimEvent* NewEvent(int device);
  SimEvent* Of(cudaEvent_t event);
  bool Forget(cudaEvent_t event);
  void Enqueue(SimStream& stream, std::string what, std::function<void(const Toucher&)> run,
               std::function<bool()> ready = nullptr);
  // What has to be made anew at each replay of a graph.
  void EnqueueAnew(SimStream& stream, std::function<void(SimStream&)> enqueue);
  void Record(SimStream& stream, const std::shared_ptr<Recording>& recording);
  cudaError_t Await(SimStream& stream, const std::shared_ptr<Recording>& recording);
  void OpenContext(int device) { contexts_.insert(device); }
  // What still lives on the GPU is lost, which is a finding.
  void EndContext(int device);
  int64_t now_ns() const { return now_ns_; }
  void Pass(int64_t ns);
  void MadeEvent(int gpu) { ++events_made_[gpu]; }
  void MadeTable(int gpu) { ++tables_made_[gpu]; }
  Nccl& nccl() { return *nccl_; }
  // Whoever blocks in a call: the world's end lets it go, and waits until it is out.
  class Guest {
   public:
    Guest() : world_(*now()) { ++world_.guests_; }
    ~Guest() { --world_.guests_; }
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;
    bool ends() const { return world_.ends_; }

   private:
    World& world_;
  };

 private:
  bool Step();

  const Options options_;
  std::recursive_mutex mutex_;
  std::mt19937_64 random_;
  Findings findings_;
  Memory memory_;
  Clock host_;
  std::vector<std::unique_ptr<SimStream>> streams_;  // for good: a destroyed one ends its work
  std::map<void*, std::unique_ptr<SimEvent>> events_;
  std::set<int> contexts_;
  std::unique_ptr<Nccl> nccl_;
  std::vector<std::unique_ptr<SimGraph>> graphs_;
  std::map<int, int> events_made_, tables_made_;
  std::atomic<int> guests_ = 0;
  std::atomic<bool> ends_ = false;
  int64_t now_ns_ = 0, steps_ = 0, on_step_ = -1;
  std::function<void()> then_;
};

// The world with its lock, for the length of a call. REQUIRES: there is one.
class Locked {
 public:
  Locked() : lock_(World::now()->mutex()) {}
  World* operator->() const { return World::now(); }
  World& operator*() const { return *World::now(); }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

}  // namespace bucketd::agent::sim
