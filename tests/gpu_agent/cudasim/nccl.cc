#include "tests/gpu_agent/cudasim/nccl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "tests/gpu_agent/cudasim/reduction.h"

namespace bucketd::agent::sim {
namespace {

bool Alike(const std::vector<Call>& a, const std::vector<Call>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Call& x, const Call& y) {
    return x.kind == y.kind && x.count == y.count && x.type == y.type && x.op == y.op;
  });
}

}  // namespace

Comm* Nccl::Of(ncclComm_t comm, const char* call, bool idle) {
  auto* known = reinterpret_cast<Comm*>(comm);
  if (known == nullptr || known->gone || known->ending) {
    world_.Find(absl::StrCat(call, " on a communicator that is gone"));
    return nullptr;
  }
  if (idle && known->progress != nullptr) {
    world_.Find(absl::StrCat(call, " on a communicator that is in progress"));
  }
  return known;
}

ncclResult_t Nccl::Begin(Comm& comm, std::function<ncclResult_t()> progress) {
  comm.progress = std::move(progress);
  return ncclInProgress;
}

ncclResult_t Nccl::Init(ncclComm_t* comm, int size, const std::string& id, int rank, int device,
                        const ncclConfig_t& config) {
  auto& group = groups_[id];
  if (group == nullptr) {
    group = std::make_unique<Group>();
    group->size = size;
    group->ranks.resize(static_cast<size_t>(size));
  }
  auto made = std::make_unique<Comm>();
  Comm& self = *made;
  self.group = group.get();
  self.name = config.commName == nullptr ? "a communicator" : config.commName;
  self.blocking = config.blocking != 0;
  self.rank = rank;
  self.device = device;
  for (const Comm* other : group->ranks) {
    if (other != nullptr && other->device == device) return ncclInvalidUsage;  // two on one GPU
  }
  group->ranks[static_cast<size_t>(rank)] = &self;
  *comm = reinterpret_cast<ncclComm_t>(&self);
  comms_.push_back(std::move(made));
  return Begin(self, [this, &self] {
    const auto& ranks = self.group->ranks;
    const bool all = std::find(ranks.begin(), ranks.end(), nullptr) == ranks.end();
    if (!all || !world_.Chance(3)) return ncclInProgress;
    BeginProfile(self);
    return ncclSuccess;
  });
}

// NCCL's thread stores it where it was told to when the call was made.
void Nccl::GiveChild(Comm& parent) {
  ncclComm_t* child = std::exchange(parent.child, nullptr);
  if (child == nullptr) return;
  if (*child != nullptr) return world_.Find("a split writes its child into memory that is gone");
  *child = reinterpret_cast<ncclComm_t>(parent.unborn);
}

// The children are there when all of the parent's ranks have asked.
ncclResult_t Nccl::Split(ncclComm_t parent, int color, int key, ncclComm_t* child,
                         const char* name) {
  Comm* from = Of(parent, "ncclCommSplit", true);
  if (from == nullptr || color < 0) return ncclInvalidArgument;
  if (!Ended(*from)) world_.Find("ncclCommSplit of a communicator whose collectives run");
  Group& family = *from->group;
  const size_t index = from->splits_asked++;
  auto made = std::make_unique<Comm>();
  Comm& self = *made;
  self.name = name == nullptr ? "a child" : name;
  self.device = from->device;
  comms_.push_back(std::move(made));
  auto& alone = groups_[absl::StrCat("asked ", comms_.size())];
  alone = std::make_unique<Group>();
  alone->size = 1;
  alone->ranks = {&self};
  self.group = alone.get();
  family.splits[index].push_back({color, key, &self});
  *child = nullptr;
  from->child = child;
  from->unborn = &self;
  Begin(*from, [this, from, &self, &family, index, color] {
    std::vector<Asked> asked = family.splits[index];
    if (asked.size() < static_cast<size_t>(family.size) || !world_.Chance(3)) return ncclInProgress;
    std::erase_if(asked, [color](const Asked& one) { return one.color != color; });
    std::sort(asked.begin(), asked.end(),
              [](const auto& a, const auto& b) { return a.key < b.key; });
    auto& group = groups_[absl::StrCat("split ", reinterpret_cast<uintptr_t>(&family), "/", index,
                                       "/", color)];
    if (group == nullptr) {
      group = std::make_unique<Group>();
      group->size = static_cast<int>(asked.size());
      for (const Asked& one : asked) group->ranks.push_back(one.child);
    }
    self.group = group.get();
    const auto& ranks = group->ranks;
    self.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), &self) - ranks.begin());
    BeginProfile(self);
    GiveChild(*from);
    return ncclSuccess;
  });
  return ncclSuccess;
}

bool Nccl::GoOn(Comm& comm) {
  if (comm.error != ncclSuccess) comm.progress = nullptr;
  if (comm.progress == nullptr) return true;
  const ncclResult_t result = comm.progress();
  if (result == ncclInProgress) return false;
  comm.progress = nullptr;
  comm.error = result;
  return true;
}

void Nccl::GoOnWithSplits() {
  for (const auto& comm : comms_) {
    if (comm->child != nullptr) GoOn(*comm);
  }
}

ncclResult_t Nccl::Count(ncclComm_t comm, int* ranks) {
  const Comm* self = Of(comm, "ncclCommCount", true);
  if (self == nullptr) return ncclInvalidArgument;
  *ranks = self->group->size;
  return ncclSuccess;
}

ncclResult_t Nccl::Poll(ncclComm_t comm, ncclResult_t* state) {
  Comm* self = Of(comm, "ncclCommGetAsyncError", false);
  if (self == nullptr) return ncclInvalidArgument;
  if (self->polls_to_error >= 0 && self->polls_to_error-- == 0) self->error = ncclRemoteError;
  *state = GoOn(*self) ? self->error : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t Nccl::Launch(ncclComm_t comm, SimStream& stream, std::vector<Call> calls) {
  Comm* self = Of(comm, "a collective", true);
  if (self == nullptr) return ncclInvalidArgument;
  if (self->error != ncclSuccess) return self->error;
  if (stream.device != self->device) return ncclInvalidArgument;
  for (const Call& call : calls) {
    // Its path of one rank has no such kernel.
    const bool f8 = call.type == ncclFloat8e4m3 || call.type == ncclFloat8e5m2;
    if (f8 && call.op == ncclAvg && self->group->size == 1) {
      return self->error = ncclInvalidArgument;
    }
  }
  ++launched_;
  world_.Pass(world_.options().launch_ns);
  const bool first = !std::exchange(self->asked, true);
  // In a graph each replay is a launch.
  const size_t index = stream.capture == nullptr ? self->launches++ : 0;
  const ProfiledLaunch asked = Ask(*self, calls);
  return Begin(*self, [this, self, &stream, calls = std::move(calls), asked, first, index] {
    // The first launch connects, which takes all ranks.
    const auto& ranks = self->group->ranks;
    const auto there = [](const Comm* peer) { return peer->asked; };
    if (first && !std::all_of(ranks.begin(), ranks.end(), there)) return ncclInProgress;
    if (!world_.Chance(2)) return ncclInProgress;
    const bool captured = stream.capture != nullptr;
    if (captured) {
      ++self->graphs;
      stream.capture->at_its_end.push_back([self] { --self->graphs; });
    }
    world_.EnqueueAnew(stream, [this, self, calls, asked, captured, index](SimStream& on) {
      auto part = std::make_shared<Part>();
      part->calls = calls;
      part->profiled = Profile(*self, asked);
      Enqueue(*self, on, part, captured ? self->launches++ : index);
    });
    return ncclSuccess;
  });
}

bool Nccl::AllStarted(const Comm& comm, size_t round) const {
  const auto& parts = comm.group->rounds[round].parts;
  return std::all_of(parts.begin(), parts.end(), [](const auto& part) {
    return part != nullptr && part->started && !part->dropped;
  });
}

// Two ops: the kernel takes its place on the GPU, and leaves it when all ranks' have come.
void Nccl::Enqueue(Comm& comm, SimStream& stream, const std::shared_ptr<Part>& part, size_t index) {
  Round& round = comm.group->rounds[index];
  round.parts.resize(static_cast<size_t>(comm.group->size));
  round.parts[static_cast<size_t>(comm.rank)] = part;
  part->dropped = comm.ending;  // a replay
  const std::string what = absl::StrCat(comm.name, "'s collective ", index);
  int& running = running_[comm.device];
  world_.Enqueue(
      stream, what,
      [this, &comm, part, &running](const Toucher& by) {
        if (part->dropped) return;
        part->started = true;
        KernelBegan(comm, *part);
        ++running;
        part->clock = *by.clock;
        part->by = by;
        part->by.clock = &part->clock;
      },
      [this, part, &running] { return part->dropped || running < world_.options().resident; });
  world_.Enqueue(
      stream, what,
      [this, &comm, &round, part, &running, index](const Toucher& by) {
        part->ended = true;
        if (part->started) --running;
        if (!part->dropped) {
          KernelEnded(comm, *part);
          End(*comm.group, round, *part, by);
        }
        // Whatever looks for what goes on looks at all rounds: those that are over go.
        const auto over = [](const auto& one) { return one != nullptr && one->ended; };
        if (std::all_of(round.parts.begin(), round.parts.end(), over)) {
          comm.group->rounds.erase(index);
        }
      },
      [this, &comm, index, part] { return part->dropped || AllStarted(comm, index); });
}

void Nccl::End(Group& group, Round& round, const Part& part, const Toucher& by) {
  Compute(group, round);
  // All ranks' inputs are in it: what was before those is before what comes now.
  Clock& clock = *const_cast<Clock*>(by.clock);
  for (const auto& other : round.parts) clock.Join(other->clock);
  for (size_t c = 0; c < part.results.size(); ++c) {
    const auto& bytes = part.results[c];
    if (bytes.empty()) continue;
    std::byte* out = world_.memory().Touch(part.calls[c].out, bytes.size(), true, by);
    if (out != nullptr) std::copy(bytes.begin(), bytes.end(), out);
  }
}

void Nccl::Compute(Group& group, Round& round) {
  if (std::exchange(round.computed, true)) return;
  for (const auto& part : round.parts) {
    if (!Alike(part->calls, round.parts[0]->calls)) {
      return world_.Find(absl::StrCat(part->by.what, ": ranks launch different collectives"));
    }
  }
  for (size_t c = 0; c < round.parts[0]->calls.size(); ++c) {
    std::vector<const std::byte*> inputs;
    for (const auto& part : round.parts) {
      const Call& call = part->calls[c];
      const size_t bytes = InputBytes(call, group.size);
      inputs.push_back(bytes == 0 ? nullptr
                                  : world_.memory().Touch(call.in, bytes, false, part->by));
      if (bytes > 0 && inputs.back() == nullptr) return;
    }
    const std::vector<std::byte> whole = Reduce(round.parts[0]->calls[c], inputs);
    for (size_t r = 0; r < round.parts.size(); ++r) {
      round.parts[r]->results.push_back(PartOf(round.parts[r]->calls[c], whole, r, group.size));
    }
  }
}

ncclResult_t Nccl::Register(ncclComm_t comm, const void* memory, ncclWindow_t* window) {
  Comm* self = Of(comm, "ncclCommWindowRegister", true);
  if (self == nullptr) return ncclInvalidArgument;
  const size_t index = self->windows_asked++;
  ++self->group->registered[index];
  return Begin(*self, [this, self, index, memory, window] {
    if (!world_.Chance(3)) return ncclInProgress;
    const auto& answer = world_.options().window;
    const ncclResult_t own = answer == nullptr ? ncclSuccess : answer(self->rank);
    if (own != ncclSuccess) return own;
    for (int rank = 0; answer != nullptr && rank < self->group->size; ++rank) {
      if (answer(rank) != ncclSuccess) return ncclInProgress;  // a peer that does not come
    }
    if (self->group->registered[index] < self->group->size) return ncclInProgress;
    *window = reinterpret_cast<ncclWindow_t>(self->windows_asked);
    self->windows[*window] = memory;
    return ncclSuccess;
  });
}

ncclResult_t Nccl::Deregister(ncclComm_t comm, ncclWindow_t window) {
  Comm* self = Of(comm, "ncclCommWindowDeregister", true);
  if (self == nullptr || self->windows.erase(window) == 1) return ncclSuccess;
  world_.Find("ncclCommWindowDeregister of what is no window");
  return ncclInvalidArgument;
}

size_t Nccl::living() const {
  return static_cast<size_t>(
      std::count_if(comms_.begin(), comms_.end(), [](const auto& comm) { return !comm->gone; }));
}

void Nccl::Freed(const void* memory) {
  for (const auto& comm : comms_) {
    for (const auto& [window, of] : comm->windows) {
      if (of == memory) world_.Find("memory is freed that is still a window");
    }
  }
}

ncclResult_t Nccl::Finalize(ncclComm_t comm) {
  Comm* self = Of(comm, "ncclCommFinalize", true);
  if (self == nullptr) return ncclInvalidArgument;
  self->finalized = true;
  return Begin(*self, [self] { return Ended(*self) ? ncclSuccess : ncclInProgress; });
}

bool Nccl::Ended(const Comm& comm) {
  return comm.graphs == 0 && std::all_of(comm.group->rounds.begin(), comm.group->rounds.end(),
                                         [&comm](const auto& round) {
                                           const auto& parts = round.second.parts;
                                           const auto& own = parts[static_cast<size_t>(comm.rank)];
                                           return own == nullptr || own->ended;
                                         });
}

Comm* Nccl::BeginDestroy(ncclComm_t comm) {
  Comm* self = Of(comm, "ncclCommDestroy", true);
  if (self == nullptr) return nullptr;
  if (!self->finalized) world_.Find("ncclCommDestroy without ncclCommFinalize");
  self->ending = true;
  return self;
}

void Nccl::EndFor(Comm& comm) {
  EndProfile(comm);
  comm.gone = true;
  comm.windows.clear();
}

void Nccl::Drop(Comm& comm) {
  for (auto& [index, round] : comm.group->rounds) {
    const auto& own = round.parts[static_cast<size_t>(comm.rank)];
    if (own != nullptr && !own->ended) own->dropped = true;
  }
}

// The flag is this communicator's alone. What it has in the background fails.
Comm* Nccl::BeginAbort(ncclComm_t comm) {
  Comm* self = Of(comm, "ncclCommAbort", false);
  if (self == nullptr) return nullptr;
  self->ending = true;
  Drop(*self);
  self->progress = nullptr;
  if (self->child != nullptr) self->error = self->unborn->error = ncclInternalError;
  GiveChild(*self);
  return self;
}

void Nccl::Kill(int rank, bool peers_hear) {
  for (const auto& comm : comms_) {
    if (comm->rank == rank) {
      Drop(*comm);
    } else if (peers_hear && comm->polls_to_error < 0) {
      comm->polls_to_error = 3;
    }
  }
}

void Nccl::FindDeadlock() {
  std::vector<std::string> held;
  for (const auto& comm : comms_) {
    for (const auto& [index, round] : comm->group->rounds) {
      const auto& own = round.parts[static_cast<size_t>(comm->rank)];
      if (own == nullptr || !own->started || own->ended) continue;
      for (const auto& part : round.parts) {
        if (part == nullptr || part->dropped) return;  // that host, or an abort, is waited for
      }
      held.push_back(absl::StrCat(own->by.what, " on GPU ", comm->device));
    }
  }
  if (held.empty()) return;
  std::string all = "a deadlock: nothing goes on beside";
  for (const std::string& one : held) absl::StrAppend(&all, " ", one, ",");
  all.back() = '.';
  world_.Find(all);
}

}  // namespace bucketd::agent::sim
