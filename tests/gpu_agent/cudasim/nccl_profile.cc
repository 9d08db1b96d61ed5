// What the simulated NCCL tells a profiler plugin of its communicators and collectives.
#include <utility>

#include "tests/gpu_agent/cudasim/nccl.h"
#include "tests/gpu_agent/cudasim/reduction.h"

namespace bucketd::agent::sim {
namespace {

const char* NameOf(Kind kind) {
  if (kind == Kind::kAllGather) return "AllGather";
  return kind == Kind::kReduceScatter ? "ReduceScatter" : "AllReduce";
}

const char* NameOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return "ncclInt8";
    case ncclFloat16:
      return "ncclFloat16";
    case ncclFloat32:
      return "ncclFloat32";
    case ncclBfloat16:
      return "ncclBfloat16";
    default:
      return "Unknown";  // as NCCL says of uint8
  }
}

}  // namespace

// Communicators of one rank run no kernels of NCCL's, but are the plugin's, too.
void Nccl::BeginProfile(Comm& comm) {
  if (profiling_ == nullptr) {
    profiling_ = Profiling::Load(world_.options().profiler_interface, world_.options().seed);
  }
  if (profiling_ == nullptr) return;
  comm.profiled = true;
  ++profiled_;
  const uint64_t id = group_ids_.try_emplace(comm.group, group_ids_.size() + 1).first->second;
  comm.profiler = profiling_->Begin(id, comm.name.c_str(), comm.group->size, comm.rank);
}

void Nccl::EndProfile(Comm& comm) {
  if (!std::exchange(comm.profiled, false)) return;
  profiling_->End(comm.profiler);
  if (--profiled_ == 0) profiling_ = nullptr;
}

ProfiledLaunch Nccl::Ask(const Comm& comm, const std::vector<Call>& calls) {
  ProfiledLaunch asked;
  if (!comm.profiled || comm.group->size == 1) return asked;
  for (const Call& call : calls) {
    const size_t item = InputBytes({Kind::kAllReduce, nullptr, nullptr, 1, call.type, ncclSum}, 1);
    asked.push_back({NameOf(call.kind), NameOf(call.type), call.count, item});
  }
  profiling_->Asked(comm.profiler, asked);
  return asked;
}

std::shared_ptr<ProfiledLaunch> Nccl::Profile(Comm& comm, const ProfiledLaunch& asked) {
  if (!comm.profiled || asked.empty()) return nullptr;
  auto launch = std::make_shared<ProfiledLaunch>(asked);
  for (ProfiledCall& call : *launch) call.sequence = comm.sequence[call.what]++;
  profiling_->HostTask(comm.profiler, comm.rank, *launch);
  return launch;
}

void Nccl::KernelBegan(const Comm& comm, Part& part) {
  part.begin_ns = world_.now_ns();
  if (comm.profiled && part.profiled != nullptr) {
    profiling_->KernelBegan(comm.profiler, part.profiled, part.begin_ns);
  }
}

void Nccl::KernelEnded(const Comm& comm, const Part& part) {
  if (!comm.profiled || part.profiled == nullptr) return;
  const int64_t end_ns = world_.now_ns();
  profiling_->KernelEnded(part.profiled, part.begin_ns, end_ns);
  for (const ProfiledCall& call : *part.profiled) {
    kernels_.push_back({comm.name, comm.rank, call.what, call.sequence, part.profiled->size(),
                        part.begin_ns, end_ns});
  }
}

}  // namespace bucketd::agent::sim
