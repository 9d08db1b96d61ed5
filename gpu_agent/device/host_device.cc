#include "gpu_agent/device/host_device.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "gpu_agent/pack/segments.h"

namespace bucketd::agent {
namespace {

class HostBuffer final : public Buffer {
 public:
  HostBuffer(void* data, int64_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  ~HostBuffer() override { std::free(data_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  std::byte* data() override { return data_; }
  int64_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> HostDevice::Allocate(int64_t bytes) {
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("a buffer of ", bytes, " bytes"));
  void* data = nullptr;
  if (posix_memalign(&data, size_t{kBufferAlignment}, static_cast<size_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a buffer of ", bytes, " B"));
  }
  return std::make_unique<HostBuffer>(data, bytes);
}

absl::StatusOr<std::unique_ptr<Stream>> HostDevice::NewStream(const std::string& name) {
  return HostStream::Start(name);
}

absl::Status HostDevice::Copy(Stream& stream, const void* from, void* to, int64_t bytes) {
  HostStream* host = AsHostStream(stream);
  if (host == nullptr || bytes < 0 || (bytes > 0 && (from == nullptr || to == nullptr))) {
    return absl::InvalidArgumentError(
        absl::StrCat("a copy of ", bytes, " bytes: wants a host stream and two addresses"));
  }
  if (bytes == 0) return absl::OkStatus();
  host->Enqueue([from, to, bytes] {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status HostDevice::CopyTiles(Stream& stream, TileList tiles) {
  HostStream* host = AsHostStream(stream);
  if (host == nullptr) return absl::InvalidArgumentError("a copy on the host wants a host stream");
  host->Enqueue([tiles = std::move(tiles)] {
    CopyOnHost(*tiles);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

HostStream* AsHostStream(Stream& stream) { return dynamic_cast<HostStream*>(&stream); }

}  // namespace bucketd::agent
