// A module with two GPUs whose memory is the host's and whose NCCL is the socket ring, so that
// programs can be tested through the module's table where no GPU is. As with a GPU's memory, nobody
// but the module can use the addresses that it gives: one bit of them is wrong. A file named after
// the process stands in FAKE_GPUS_CONTEXTS while it has a context; one in FAKE_GPUS_LOST destroys
// that context. With FAKE_GPUS_FULL there is no memory for more.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/comm/ring_connect.h"
#include "gpu_agent/device/gpu_module.h"
#include "gpu_agent/device/host_device.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// Neither x86-64 nor AArch64 maps such addresses for programs.
constexpr uintptr_t kOnGpu = uintptr_t{1} << 55;

std::byte* OnGpu(std::byte* host) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(host) | kOnGpu);
}

template <typename T>
T* OnHost(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) & ~kOnGpu);
}

bool IsOnGpu(const void* address) {
  return address == nullptr || (reinterpret_cast<uintptr_t>(address) & kOnGpu) != 0;
}

class FakeBuffer final : public Buffer {
 public:
  explicit FakeBuffer(std::unique_ptr<Buffer> host) : host_(std::move(host)) {}
  std::byte* data() override { return OnGpu(host_->data()); }
  int64_t bytes() const override { return host_->bytes(); }

 private:
  const std::unique_ptr<Buffer> host_;
};

absl::Status Lost() {
  static const char* const folder = std::getenv("FAKE_GPUS_LOST");
  if (folder == nullptr || !std::filesystem::exists(absl::StrCat(folder, "/", getpid()))) {
    return absl::OkStatus();
  }
  return absl::InternalError("an illegal memory access was encountered");
}

class FakeGpu final : public Device {
 public:
  explicit FakeGpu(int index) : index_(index) {}
  std::string name() const override { return absl::StrCat("cuda:", index_, " of the tests"); }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, host_.Allocate(bytes));
    return std::make_unique<FakeBuffer>(std::move(buffer));
  }
  absl::StatusOr<std::unique_ptr<Stream>> NewStream(const std::string& name) override {
    RETURN_IF_ERROR(Lost());
    return host_.NewStream(name);
  }
  absl::Status Copy(Stream& stream, const void* from, void* to, int64_t bytes) override {
    RETURN_IF_ERROR(Lost());
    return host_.Copy(stream, OnHost(from), OnHost(to), bytes);
  }
  absl::Status CopyTiles(Stream& stream, TileList tiles) override {
    auto here = std::make_shared<std::vector<Tile>>(*tiles);
    for (Tile& tile : *here) {
      if (!IsOnGpu(tile.from) || !IsOnGpu(tile.to)) return absl::InternalError("host memory");
      tile.from = OnHost(tile.from);
      tile.to = OnHost(tile.to);
    }
    return host_.CopyTiles(stream, std::move(here));
  }

 private:
  const int index_;
  HostDevice host_;
};

// An id is the folder where the ring meets. Rank 0 made it and removes it.
class FakeNccl final : public Communicator {
 public:
  static absl::StatusOr<std::unique_ptr<Communicator>> Connect(const NcclOptions& options) {
    std::unique_ptr<FakeNccl> nccl(new FakeNccl);
    if (options.rank == 0) nccl->folder_ = options.id;
    ASSIGN_OR_RETURN(const auto rendezvous, FolderRendezvous::Open(options.id));
    RingConnectOptions connect;
    connect.self.group = options.name;
    connect.self.rank = options.rank;
    connect.self.size = options.size;
    connect.token = "the folder is private";
    connect.unix_folder = options.id;
    connect.deadline = absl::Now() + options.timeout;
    ASSIGN_OR_RETURN(RingPeers peers, ConnectRing(connect, *rendezvous));
    RingOptions ring;
    ring.timeout = options.timeout;
    nccl->host_ = options.host;
    ASSIGN_OR_RETURN(nccl->ring_, RingCommunicator::Create(std::move(peers), ring));
    return nccl;
  }
  ~FakeNccl() override {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  absl::Status Launch(Stream& stream, absl::Span<const Collective> group) override {
    std::vector<Collective> here(group.begin(), group.end());
    for (Collective& c : here) {
      if (!IsOnGpu(c.in) || !IsOnGpu(c.out)) return absl::InternalError("host memory");
      c.in = OnHost(c.in);
      c.out = OnHost(c.out);
    }
    RETURN_IF_ERROR(ring_->Launch(stream, here));
    // While the file of this name is there, what comes off the wire is not what went on it.
    static const char* const wrong = std::getenv("FAKE_NCCL_WRONG");
    if (wrong == nullptr || !std::filesystem::exists(wrong)) return absl::OkStatus();
    static constexpr char kByte = 1;
    return memory_.Copy(stream, &kByte, here[0].out, 1);
  }
  Communicator& host() override { return *host_; }
  int rank() const override { return ring_->rank(); }
  int size() const override { return ring_->size(); }
  std::string ToString() const override {
    return absl::StrCat("NCCL of the tests of ", size(), " ranks, rank ", rank());
  }
  absl::Status health() const override { return ring_->health(); }
  void Abort(const std::string& why) override { ring_->Abort(why); }

 private:
  FakeNccl() = default;

  std::string folder_;
  std::shared_ptr<Communicator> host_;
  std::unique_ptr<Communicator> ring_;
  HostDevice memory_;
};

// "" where nobody looks.
std::string ContextFile() {
  const char* folder = std::getenv("FAKE_GPUS_CONTEXTS");
  return folder == nullptr ? "" : absl::StrCat(folder, "/", getpid());
}

absl::StatusOr<std::unique_ptr<Device>> Open(int index) {
  if (index < 0 || index > 1) return absl::InvalidArgumentError("there are 2 GPUs");
  if (!ContextFile().empty()) std::ofstream(ContextFile()) << index;
  if (std::getenv("FAKE_GPUS_FULL") != nullptr) return absl::ResourceExhaustedError("no memory");
  return std::make_unique<FakeGpu>(index);
}

absl::StatusOr<std::string> NcclId() {
  const char* set = std::getenv("FAKE_NCCL_FOLDER");
  const std::filesystem::path folder =
      set == nullptr ? std::filesystem::temp_directory_path() : set;
  std::string path = (folder / "fake-nccl.XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return absl::InternalError(path);
  return path;
}

absl::StatusOr<std::string> NcclVersion() {
  const char* set = std::getenv("FAKE_NCCL_VERSION");
  return set == nullptr ? "NCCL of the tests" : set;
}

absl::Status Leave(int) {
  if (!ContextFile().empty()) std::filesystem::remove(ContextFile());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> NewNccl(Device& device, const NcclOptions& options) {
  if (dynamic_cast<FakeGpu*>(&device) == nullptr) return absl::InvalidArgumentError("no GPU");
  return FakeNccl::Connect(options);
}

}  // namespace
}  // namespace bucketd::agent

extern "C" __attribute__((visibility("default"))) const bucketd::agent::GpuModule*
bucketd_cuda_module_v1() {
  using namespace bucketd::agent;
  static constexpr GpuModule kModule = {
      kGpuModuleVersion,
      []() -> absl::StatusOr<int> { return 2; },
      Open,
      [](Device&, void*) -> absl::StatusOr<std::unique_ptr<Stream>> {
        return absl::UnimplementedError("the host has no streams of others");
      },
      [](const Collective&) { return absl::OkStatus(); },
      NcclId,
      NewNccl,
      NcclVersion,
      Leave};
  return &kModule;
}
