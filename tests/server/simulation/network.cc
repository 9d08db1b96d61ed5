#include "tests/server/simulation/network.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/server/simulation/world.h"

namespace bucketd::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Keepalive: a ping and its answer (rpc/grpc_peer_calls.cc).
constexpr std::chrono::seconds kBreaksAfter{10};

absl::Status Broken(const char* why) { return absl::UnavailableError(why); }

}  // namespace

// One forwarded call.
struct Wire final : public PeerCalls::Call, std::enable_shared_from_this<Wire> {
  void Cancel() override {
    network->world_.threads.Asks("Cancel of a Forward");
    network->Reply(shared_from_this(), absl::CancelledError("cancelled"));
    network->CancelThere(shared_from_this());
  }

  Network* network = nullptr;
  uint64_t id = 0;
  Process* from = nullptr;
  std::string to;  // address
  PeerCalls::Done<v1::ForwardReply> done;
  bool ended = false;  // `done` has been called
  // There.
  Process* there = nullptr;
  uint64_t serves = 0;
  bool answered = false;
};

// What the cluster's server code calls.
class Peers final : public PeerCalls {
 public:
  Peers(Network& network, Process& process) : network_(network), process_(process) {}
  ~Peers() override { Stop(); }

  std::shared_ptr<Call> Forward(const std::string& address, v1::ForwardRequest request,
                                SteadyTime deadline, Done<v1::ForwardReply> done) override {
    World& world = network_.world_;
    world.threads.Asks("Forward");
    auto wire = std::make_shared<Wire>();
    wire->network = &network_;
    wire->id = ++network_.last_id_;
    wire->from = &process_;
    wire->to = address;
    if (stopped_) {
      wire->ended = true;
      done(absl::CancelledError("the server is shutting down"));
      return wire;
    }
    wire->done = std::move(done);
    network_.wires_.emplace(wire->id, wire);
    network_.Send(wire, std::move(request),
                  world.threads.now() + (deadline - std::chrono::steady_clock::now()));
    return wire;
  }

  absl::Status BringGraph(const std::string& address, const std::string& tenant,
                          const Digest& digest, const Graph&, SteadyTime) override {
    World& world = network_.world_;
    world.threads.Asks("BringGraph");
    const Time arrives = network_.Arrival(process_.name, address);
    world.threads.Sleep(std::min<Time>(arrives - world.threads.now(), kBreaksAfter));
    Node* node = world.Serving(address);
    if (process_.dead || stopped_ || node == nullptr || arrives > world.threads.now()) {
      return Broken("the graph could not be brought");
    }
    const std::string key = GraphKey(tenant, digest);
    world.Deliver(node->process(), [node, key, graph = world.GraphOf(digest)] {
      node->EndUpload(key, node->BeginUpload(key), graph);
    });
    world.threads.Sleep(network_.Delay());
    return absl::OkStatus();
  }

  void KeepOnly(const std::set<std::string>&) override {}
  // Nobody here asks for jobs or releases them: what is agreed on again may be another plan.
  void ShowJobs(const std::string&, v1::ShowJobsRequest, SteadyTime,
                Done<v1::ShowJobsReply> done) override {
    done(absl::UnimplementedError("no operator asks this"));
  }
  void ForgetJobs(const std::string&, v1::ForgetJobsRequest, SteadyTime,
                  Done<v1::ForgetJobsReply> done) override {
    done(absl::UnimplementedError("no operator asks this"));
  }

  void Stop() override {
    stopped_ = true;
    std::vector<std::shared_ptr<Wire>> own;
    for (const auto& [id, wire] : network_.wires_) {
      if (wire->from == &process_) own.push_back(wire);
    }
    for (const std::shared_ptr<Wire>& wire : own) {
      network_.wires_.erase(wire->id);
      network_.CancelThere(wire);
      if (!std::exchange(wire->ended, true)) {
        std::exchange(wire->done, nullptr)(absl::CancelledError("the server is shutting down"));
      }
    }
  }

 private:
  Network& network_;
  Process& process_;
  bool stopped_ = false;
};

std::unique_ptr<PeerCalls> Network::Connect(Process& process) {
  return std::make_unique<Peers>(*this, process);
}

Time Network::Delay() { return microseconds(world_.random.Between(100, 3000)); }

Time Network::CutUntil(const std::string& a, const std::string& b) const {
  const auto found = cuts_.find(std::minmax(a, b));
  return found == cuts_.end() ? Time(0) : found->second;
}

Time Network::Arrival(const std::string& a, const std::string& b) {
  const Time now = world_.threads.now();
  const Time whole = std::max(now, CutUntil(a, b));
  return whole - now > kBreaksAfter ? kNever : whole + Delay();
}

void Network::Cut(const std::string& a, const std::string& b, Time until) {
  cuts_[std::minmax(a, b)] = until;
  const Time breaks = world_.threads.now() + kBreaksAfter;
  if (until <= breaks) return;
  for (const auto& [id, wire] : wires_) {
    const bool is_cut = std::minmax(wire->from->name, wire->to) == std::minmax(a, b);
    if (is_cut) Break(wire, "no answer to a ping", breaks);
  }
}

void Network::Died(const Process& process) {
  const Time soon = world_.threads.now() + milliseconds(1);
  for (const auto& [id, wire] : wires_) {
    if (wire->from == &process || wire->there == &process) Break(wire, "connection reset", soon);
  }
}

void Network::Break(const std::shared_ptr<Wire>& wire, const char* why, Time when) {
  world_.threads.At(when, nullptr, [this, wire, why] {
    wires_.erase(wire->id);
    if (!wire->ended) {
      world_.threads.At(world_.threads.now(), wire->from, [wire, why] {
        if (!std::exchange(wire->ended, true)) std::exchange(wire->done, nullptr)(Broken(why));
      });
    }
    if (wire->there != nullptr && !wire->answered) {
      wire->answered = true;
      world_.threads.At(world_.threads.now(), wire->there, [this, wire] {
        if (Node* node = world_.NodeOf(*wire->there)) node->CancelForward(wire->serves);
      });
    }
  });
}

void Network::Send(const std::shared_ptr<Wire>& wire, v1::ForwardRequest request, Time deadline) {
  world_.threads.At(deadline, nullptr, [this, wire] {
    if (wire->ended) return;
    Reply(wire, absl::DeadlineExceededError("deadline"));
    CancelThere(wire);
  });
  const Time arrives = Arrival(wire->from->name, wire->to);
  if (arrives == kNever) {
    Break(wire, "no answer to a ping", world_.threads.now() + kBreaksAfter);
    return;
  }
  const auto arrive = [this, wire, deadline, request = std::move(request)] {
    if (!wires_.contains(wire->id)) return;  // it broke, or was cancelled
    Node* node = world_.Serving(wire->to);
    if (node == nullptr) {
      Break(wire, "connection refused", world_.threads.now() + Delay());
      return;
    }
    wire->there = &node->process();
    world_.Deliver(node->process(), [this, node, wire, deadline, request] {
      if (wire->answered) return;
      const uint64_t serves =
          node->Forward(request, deadline, [this, wire](v1::ForwardReply reply) {
            if (std::exchange(wire->answered, true)) return;
            const Time back = Arrival(wire->from->name, wire->to);
            if (back == kNever) {
              Break(wire, "no answer to a ping", world_.threads.now() + kBreaksAfter);
              return;
            }
            world_.threads.At(back, nullptr,
                              [this, wire, reply = std::move(reply)] { Reply(wire, reply); });
          });
      wire->serves = serves;
    });
  };
  world_.threads.At(arrives, nullptr, arrive);
}

void Network::Reply(const std::shared_ptr<Wire>& wire, absl::StatusOr<v1::ForwardReply> reply) {
  if (wires_.erase(wire->id) == 0) return;
  world_.threads.At(world_.threads.now(), wire->from, [wire, reply = std::move(reply)] {
    if (!std::exchange(wire->ended, true)) std::exchange(wire->done, nullptr)(reply);
  });
}

void Network::CancelThere(const std::shared_ptr<Wire>& wire) {
  const Time arrives = Arrival(wire->from->name, wire->to);
  const Time when = arrives == kNever ? world_.threads.now() + kBreaksAfter : arrives;
  world_.threads.At(when, nullptr, [this, wire] {
    if (wire->there == nullptr || std::exchange(wire->answered, true)) return;
    world_.threads.At(world_.threads.now(), wire->there, [this, wire] {
      if (Node* node = world_.NodeOf(*wire->there)) node->CancelForward(wire->serves);
    });
  });
}

}  // namespace bucketd::simulation
