// Captures into graphs, by CUDA's rules, and their replays.
#include <algorithm>
#include <set>
#include <utility>

#include "tests/gpu_agent/cudasim/world.h"

namespace bucketd::agent::sim {
namespace {

// The nodes, and all that they come after.
std::set<size_t> Before(const SimGraph& graph, const std::vector<size_t>& nodes) {
  std::set<size_t> found;
  std::vector<size_t> left = nodes;
  while (!left.empty()) {
    const size_t node = left.back();
    left.pop_back();
    if (!found.insert(node).second) continue;
    const auto& after = graph.nodes[node].after;
    left.insert(left.end(), after.begin(), after.end());
  }
  return found;
}

}  // namespace

bool World::capturing(int device) const {
  return std::any_of(graphs_.begin(), graphs_.end(), [device](const auto& graph) {
    return !graph->ended && graph->origin->device == device;
  });
}

void World::BeginCapture(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  auto graph = std::make_unique<SimGraph>();
  graph->id = graphs_.size();
  graph->origin = Of(stream);
  graph->origin->capture = graph.get();
  graphs_.push_back(std::move(graph));
}

SimGraph* World::EndCapture(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  SimGraph* graph = Of(stream)->capture;
  const std::set<size_t> joined = Before(*graph, graph->origin->tips);
  for (const auto& known : streams_) {
    if (known->capture != graph) continue;
    const auto& tips = known->tips;
    if (!std::all_of(tips.begin(), tips.end(), [&](size_t n) { return joined.contains(n); })) {
      findings_.Add("a capture ended before a stream in it was joined");
    }
    known->capture = nullptr;
    known->tips.clear();
  }
  graph->ended = true;
  return graph;
}

void World::Hold(SimGraph& graph) {
  const std::lock_guard lock(mutex_);
  ++graph.handles;
}

void World::Destroy(SimGraph& graph) {
  const std::lock_guard lock(mutex_);
  if (graph.handles == 0) return findings_.Add("a graph that is destroyed twice");
  if (--graph.handles > 0) return;
  for (const auto& then : std::exchange(graph.at_its_end, {})) then();
}

void World::EnqueueAnew(SimStream& stream, std::function<void(SimStream&)> enqueue) {
  if (stream.capture == nullptr) return enqueue(stream);
  auto& nodes = stream.capture->nodes;
  nodes.push_back({&stream, std::move(enqueue), stream.tips});
  stream.tips = {nodes.size() - 1};
}

void World::Record(SimStream& stream, const std::shared_ptr<Recording>& recording) {
  if (stream.capture != nullptr) {
    recording->graph = stream.capture;
    recording->nodes = stream.tips;
    return;
  }
  Enqueue(stream, "an event", [this, &stream, recording](const Toucher&) {
    recording->done = true;
    recording->clock = stream.clock;
    recording->at_ns = now_ns_;
  });
}

cudaError_t World::Await(SimStream& stream, const std::shared_ptr<Recording>& recording) {
  SimGraph* graph = recording->graph;
  if (graph == nullptr && stream.capture == nullptr) {
    Enqueue(
        stream, "a wait",
        [&stream, recording](const Toucher&) { stream.clock.Join(recording->clock); },
        [recording] { return recording->done; });
    return cudaSuccess;
  }
  if (graph == nullptr || (stream.capture != nullptr && stream.capture != graph)) {
    findings_.Add("a stream in a capture waits for an event from outside of it");
    return cudaErrorStreamCaptureIsolation;
  }
  if (graph->ended) {
    findings_.Add("a stream waits for an event of a capture that has ended");
    return cudaErrorCapturedEvent;
  }
  stream.capture = graph;
  stream.tips.insert(stream.tips.end(), recording->nodes.begin(), recording->nodes.end());
  return cudaSuccess;
}

// On streams of its own, one for each that was captured, between what is before and behind it on
// the stream.
void World::Replay(const SimGraph& graph, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (graph.handles == 0) return findings_.Add("a replay of a graph that is destroyed");
  SimStream& on = *Of(stream);
  const auto begin = std::make_shared<Recording>();
  Record(on, begin);
  std::map<const SimStream*, SimStream*> streams;
  std::vector<std::shared_ptr<Recording>> ends;
  for (const SimGraph::Node& node : graph.nodes) {
    SimStream*& lane = streams[node.stream];
    if (lane == nullptr) {
      lane = NewStream(on.device);
      Await(*lane, begin);
    }
    for (const size_t before : node.after) Await(*lane, ends[before]);
    node.enqueue(*lane);
    Record(*lane, ends.emplace_back(std::make_shared<Recording>()));
  }
  for (const auto& end : ends) Await(on, end);
}

}  // namespace bucketd::agent::sim
