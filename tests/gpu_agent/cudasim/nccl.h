// NCCL's rules, without its transports: calls that go on in the background or block, groups,
// collectives that begin on all ranks before they end on one, windows, failures, and ends that wait
// for kernels and graphs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu_agent/cuda/nccl_api.h"
#include "tests/gpu_agent/cudasim/world.h"

namespace bucketd::agent::sim {

std::shared_ptr<const NcclApi> NcclTable();

enum class Kind { kAllGather, kReduceScatter, kAllReduce };

struct Call {
  Kind kind = Kind::kAllGather;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
};

struct Comm;

// One rank's kernel of a launch.
struct Part {
  std::vector<Call> calls;
  bool started = false, ended = false;
  bool dropped = false;  // its rank died or was aborted
  Toucher by;
  Clock clock;                                  // at its start
  std::vector<std::vector<std::byte>> results;  // of each call
  std::shared_ptr<ProfiledLaunch> profiled;
  int64_t begin_ns = 0;
};

// The n-th launch of a process group.
struct Round {
  std::vector<std::shared_ptr<Part>> parts;  // by rank; null: its host has not launched it
  bool computed = false;
};

struct Asked {
  int color = 0, key = 0;
  Comm* child = nullptr;
};

struct Group {
  int size = 0;
  std::vector<Comm*> ranks;
  std::map<size_t, Round> rounds;
  std::map<size_t, int> registered;             // how many ranks have asked for the n-th window
  std::map<size_t, std::vector<Asked>> splits;  // who has asked for the n-th
};

// What ncclComm_t points to. It stays for good, so that late calls are found.
struct Comm {
  Group* group = nullptr;
  std::string name;
  int rank = 0, device = 0;
  bool blocking = false;
  bool ending = false;  // in ncclCommAbort or ncclCommDestroy; its kernels see an abort's flag
  bool gone = false, finalized = false;
  int graphs = 0;  // that its collectives were captured into, and that live
  ncclResult_t error = ncclSuccess;
  int polls_to_error = -1;
  std::function<ncclResult_t()> progress;  // of the call that is under way; null: none
  bool asked = false;                      // for its first launch, which connects
  size_t launches = 0, windows_asked = 0, splits_asked = 0;
  // Of the split that is under way: the child, and where NCCL's thread puts it in the end.
  Comm* unborn = nullptr;
  ncclComm_t* child = nullptr;
  std::map<ncclWindow_t, const void*> windows;
  bool profiled = false;                     // a plugin knows it
  void* profiler = nullptr;                  // its context, which may be null
  std::map<std::string, uint64_t> sequence;  // of its collectives, by their names
};

class Nccl {
 public:
  explicit Nccl(World& world) : world_(world) {}
  ncclResult_t Init(ncclComm_t* comm, int size, const std::string& id, int rank, int device,
                    const ncclConfig_t& config);
  // It goes on as the parent does, in the background or while the caller blocks, and there is no
  // child until it is over.
  ncclResult_t Split(ncclComm_t parent, int color, int key, ncclComm_t* child, const char* name);
  ncclResult_t Count(ncclComm_t comm, int* ranks);
  ncclResult_t Poll(ncclComm_t comm, ncclResult_t* state);
  // REQUIRES for all of these: the communicator has no call under way, else that is a finding.
  ncclResult_t Launch(ncclComm_t comm, SimStream& stream, std::vector<Call> calls);
  ncclResult_t Register(ncclComm_t comm, const void* memory, ncclWindow_t* window);
  ncclResult_t Deregister(ncclComm_t comm, ncclWindow_t window);
  ncclResult_t Finalize(ncclComm_t comm);
  // What ncclCommDestroy and ncclCommAbort begin with, or null; and what they end with, once there
  // is no kernel and no graph of it any more, for which they block.
  Comm* BeginDestroy(ncclComm_t comm);
  Comm* BeginAbort(ncclComm_t comm);
  static bool Ended(const Comm& comm);
  void EndFor(Comm& comm);
  // A part of the call that is under way. True: there is none any more.
  static bool GoOn(Comm& comm);
  void GoOnWithSplits();

  void Kill(int rank, bool peers_hear);
  void Freed(const void* memory);  // which is no window of anybody
  size_t living() const;           // communicators
  int64_t launched() const { return launched_; }
  const std::vector<KernelRun>& kernels() const { return kernels_; }
  // Nothing can go on: is it because kernels hold what others wait for?
  void FindDeadlock();

 private:
  Comm* Of(ncclComm_t comm, const char* call, bool idle);
  ncclResult_t Begin(Comm& comm, std::function<ncclResult_t()> progress);
  void GiveChild(Comm& parent);
  void Enqueue(Comm& comm, SimStream& stream, const std::shared_ptr<Part>& part, size_t index);
  bool AllStarted(const Comm& comm, size_t round) const;
  void End(Group& group, Round& round, const Part& part, const Toucher& by);
  void Compute(Group& group, Round& round);
  void Drop(Comm& comm);
  // For a profiler plugin, where there is one (nccl_profile.cc).
  void BeginProfile(Comm& comm);
  void EndProfile(Comm& comm);
  ProfiledLaunch Ask(const Comm& comm, const std::vector<Call>& calls);
  std::shared_ptr<ProfiledLaunch> Profile(Comm& comm, const ProfiledLaunch& asked);
  void KernelBegan(const Comm& comm, Part& part);
  void KernelEnded(const Comm& comm, const Part& part);

  World& world_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Comm>> comms_;
  int64_t launched_ = 0;
  std::map<int, int> running_;  // kernels on each GPU
  std::unique_ptr<Profiling> profiling_;
  size_t profiled_ = 0;  // communicators that the plugin knows
  std::map<const Group*, uint64_t> group_ids_;
  std::vector<KernelRun> kernels_;
};

}  // namespace bucketd::agent::sim
