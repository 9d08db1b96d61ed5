#include "gpu_agent/backend/backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "gpu_agent/comm/endpoint.h"
#include "gpu_agent/device/host_device.h"
#include "gpu_agent/exec/agreement.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

bool GpusAreShared() {
  const char* set = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return set != nullptr && std::strcmp(set, "1") == 0;
}

// Why NCCL cannot serve so many ranks here; "" if it can.
std::string Hindrance(const GpuBackend& found, int ranks) {
  if (found.module == nullptr) return found.reason;
  const absl::StatusOr<std::string> nccl = found.module->nccl_version();
  if (!nccl.ok()) return std::string(nccl.status().message());
  if (found.gpus >= ranks || GpusAreShared()) return "";
  return absl::StrCat(ranks, " ranks on ", found.gpus, found.gpus == 1 ? " GPU" : " GPUs",
                      ": NCCL refuses two ranks on one (from 2.30 on it takes them with "
                      "NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment)");
}

// What ranks say to each other: which NCCL they have, and rank 0 its id, or why it has none.
class Invitation {
 public:
  static constexpr size_t kBytes = 512, kVersionBytes = 64, kAllBytes = kBytes + kVersionBytes;

  static std::vector<std::byte> Write(const absl::StatusOr<std::string>& id,
                                      const std::string& version) {
    const std::string text = id.ok() ? *id : std::string(id.status().message());
    std::vector<std::byte> bytes(kAllBytes);
    std::memcpy(bytes.data() + kBytes, version.data(), std::min(version.size(), kVersionBytes));
    const size_t size = std::min(text.size(), kBytes - 3);
    bytes[0] = static_cast<std::byte>(id.ok());
    bytes[1] = static_cast<std::byte>(size >> 8);
    bytes[2] = static_cast<std::byte>(size & 0xff);
    std::memcpy(bytes.data() + 3, text.data(), size);
    return bytes;
  }

  static absl::StatusOr<std::string> Read(const std::byte* bytes) {
    const size_t size = std::to_integer<size_t>(bytes[1]) << 8 | std::to_integer<size_t>(bytes[2]);
    std::string text(reinterpret_cast<const char*>(bytes) + 3, std::min(size, kBytes - 3));
    if (bytes[0] == std::byte{1}) return text;
    return absl::UnavailableError(absl::StrCat("rank 0 has no NCCL id: ", text));
  }

  static std::string Version(const std::byte* bytes) {
    const char* text = reinterpret_cast<const char*>(bytes) + kBytes;
    return std::string(text, strnlen(text, kVersionBytes));
  }
};

// "NCCL 2.27.3" of "NCCL 2.27.3 (libnccl.so.2)": the same one may lie elsewhere on each node.
std::string WithoutItsFile(const std::string& version) {
  return version.substr(0, version.find(" ("));
}

// Before NCCL starts. Without "=" it would take the name for the beginning of one.
absl::Status HaveNcclUse(const std::string& interface) {
  if (interface.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string name, InterfaceName(interface));
  setenv("NCCL_SOCKET_IFNAME", absl::StrCat("=", name).c_str(), 0);
  return absl::OkStatus();
}

// `own` as rank 0 has it, on all ranks, which have one NCCL: two would hang, or worse.
absl::StatusOr<std::string> Invite(Communicator& ring, const absl::StatusOr<std::string>& own,
                                   const std::string& version) {
  // The ring's own timeout ends it.
  ASSIGN_OR_RETURN(const std::vector<std::byte> all,
                   Exchange(ring, Invitation::Write(own, version), absl::InfiniteFuture()));
  const std::string first = Invitation::Version(all.data());
  for (int rank = 1; rank < ring.size(); ++rank) {
    const std::string other =
        Invitation::Version(all.data() + static_cast<size_t>(rank) * Invitation::kAllBytes);
    if (other == first) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank 0 has ", first, ", rank ", rank, " has ", other,
                     ": all nodes want the same; BUCKETD_NCCL_LIB names a libnccl.so.2"));
  }
  return Invitation::Read(all.data());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> Backend::Open(const std::string& asked, int rank,
                                                       int ranks, const std::string& interface,
                                                       const std::string& module) {
  if (asked == "ring") return OnHost("as asked");
  if (asked != "nccl" && asked != "auto") {
    return absl::OutOfRangeError(
        absl::StrCat("unknown backend \"", asked, "\"; known: auto, nccl, ring"));
  }
  const GpuBackend found = LoadGpuBackend(module);
  std::string why = Hindrance(found, ranks);
  if (why.empty()) {
    RETURN_IF_ERROR(HaveNcclUse(interface));
    absl::StatusOr<std::unique_ptr<Backend>> opened = OnGpu(found, rank % found.gpus);
    if (opened.ok()) return opened;
    why = std::string(opened.status().message());
  }
  if (asked == "auto") return OnHost(why);
  return absl::UnavailableError(absl::StrCat("backend nccl: ", why, "; backend ring wants no GPU"));
}

absl::StatusOr<std::unique_ptr<Backend>> Backend::OnGpu(const GpuBackend& found, int index) {
  std::unique_ptr<Backend> backend(new Backend);
  backend->module_ = found.module;
  backend->index_ = index;
  backend->name_ = "nccl";
  backend->reason_ = absl::StrCat("nccl: ", found.reason);
  RETURN_IF_ERROR(backend->Return());
  return backend;
}

absl::Status Backend::Leave() {
  if (module_ == nullptr) return absl::OkStatus();
  device_ = nullptr;
  return module_->leave(index_);
}

absl::Status Backend::Return() {
  if (device_ != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(device_, module_->open(index_));
  return absl::OkStatus();
}

// Whatever is asked of such a context answers with the error that destroyed it.
absl::Status Backend::Check() {
  if (module_ == nullptr || device_ == nullptr) return absl::OkStatus();
  const absl::Status made = device_->NewStream("check").status();
  if (!absl::IsInternal(made)) return absl::OkStatus();  // for want of memory it may yet go on
  return absl::UnavailableError(absl::StrCat(
      device_->name(), " is lost to this process, which has to be started anew: ", made.message()));
}

std::unique_ptr<Backend> Backend::OnHost(const std::string& why) {
  std::unique_ptr<Backend> backend(new Backend);
  backend->name_ = "ring";
  backend->reason_ = absl::StrCat("ring: ", why);
  backend->device_ = std::make_unique<HostDevice>();
  return backend;
}

absl::StatusOr<std::unique_ptr<Communicator>> Backend::Connect(RingPeers peers,
                                                               const RingOptions& options,
                                                               const std::string& group) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> ring,
                   RingCommunicator::Create(std::move(peers), options));
  if (module_ == nullptr) return ring;
  NcclOptions nccl;
  nccl.rank = ring->rank();
  nccl.size = ring->size();
  nccl.name = group;
  nccl.timeout = options.timeout;
  ASSIGN_OR_RETURN(const std::string version, module_->nccl_version());
  ASSIGN_OR_RETURN(
      nccl.id, Invite(*ring, nccl.rank == 0 ? module_->nccl_id() : "", WithoutItsFile(version)));
  nccl.host = std::move(ring);
  return module_->nccl(*device_, nccl);
}

}  // namespace bucketd::agent
