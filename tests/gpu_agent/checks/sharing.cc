#include <cuda.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/gpu_agent/checks/checks.h"
#include "tests/gpu_agent/checks/say.h"

namespace bucketd::agent {
namespace {

constexpr size_t kBytes = size_t{256} << 20;

void Must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: driver error %d\n", what, static_cast<int>(result));
  std::exit(static_cast<int>(Verdict::kWrong));
}

// The driver's functions by name: the program starts where there is no driver as well.
template <class Function>
Function Driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  agent::Must(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
              name);
  return reinterpret_cast<Function>(function);
}
#define DRIVER(name) Driver<decltype(&name)>(#name)

// A message of one byte and one file descriptor. It points into itself.
struct FileMessage {
  FileMessage() = default;
  FileMessage(const FileMessage&) = delete;
  FileMessage& operator=(const FileMessage&) = delete;

  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr header{.msg_name = nullptr,
                .msg_namelen = 0,
                .msg_iov = &data,
                .msg_iovlen = 1,
                .msg_control = control,
                .msg_controllen = sizeof(control),
                .msg_flags = 0};
};

void SendFile(int socket, int file) {
  FileMessage message;
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  if (sendmsg(socket, &message.header, 0) != 1) std::exit(static_cast<int>(Verdict::kWrong));
}

int ReceiveFile(int socket) {
  FileMessage message;
  int file = -1;
  if (recvmsg(socket, &message.header, 0) != 1) std::exit(static_cast<int>(Verdict::kWrong));
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  if (header == nullptr) std::exit(static_cast<int>(Verdict::kWrong));
  std::memcpy(&file, CMSG_DATA(header), sizeof(file));
  return file;
}

void* Map(CUmemGenericAllocationHandle handle) {
  CUdeviceptr at = 0;
  Must(DRIVER(cuMemAddressReserve)(&at, kBytes, 0, 0, 0), "reserving addresses");
  Must(DRIVER(cuMemMap)(at, kBytes, 0, handle, 0), "mapping");
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Must(DRIVER(cuMemSetAccess)(at, kBytes, &access, 1), "access");
  // From now on the mapping alone holds the memory.
  Must(DRIVER(cuMemRelease)(handle), "releasing the handle");
  return reinterpret_cast<void*>(at);
}

void Unmap(void* memory) {
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  Must(DRIVER(cuMemUnmap)(at, kBytes), "unmapping");
  Must(DRIVER(cuMemAddressFree)(at, kBytes), "freeing addresses");
}

void* Own(int socket) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  int file = -1;
  Must(DRIVER(cuMemCreate)(&handle, kBytes, &properties, 0), "allocating");
  Must(DRIVER(cuMemExportToShareableHandle)(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0),
       "exporting");
  SendFile(socket, file);
  close(file);
  return Map(handle);
}

void* Borrow(int socket) {
  const int file = ReceiveFile(socket);
  CUmemGenericAllocationHandle handle = 0;
  Must(DRIVER(cuMemImportFromShareableHandle)(&handle,
                                              reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
       "importing");
  close(file);
  return Map(handle);
}

bool Holds(const void* memory, int value) {
  std::vector<unsigned char> bytes(kBytes);
  agent::Must(cudaMemcpy(bytes.data(), memory, kBytes, cudaMemcpyDeviceToHost), "reading");
  for (const unsigned char byte : bytes) {
    if (byte != value) return false;
  }
  return true;
}

// The one that is killed: writes all of it, says so, and goes on writing until its end.
[[noreturn]] void Victim(int socket, bool owner) {
  agent::Must(cudaFree(nullptr), "starting CUDA");
  void* memory = owner ? Own(socket) : Borrow(socket);
  agent::Must(cudaMemset(memory, 0x5a, kBytes), "writing");
  agent::Must(cudaDeviceSynchronize(), "writing");
  const char written = 'w';
  if (write(socket, &written, 1) != 1) std::exit(1);
  for (;;) {
    agent::Must(cudaMemset(memory, 0x5a, kBytes), "writing");
    agent::Must(cudaDeviceSynchronize(), "writing");
  }
}

// In a process of its own: what was forked before it has no CUDA.
bool Survive(bool victim_owns) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return false;
  const pid_t victim = fork();
  if (victim == 0) {
    close(sockets[0]);
    Victim(sockets[1], victim_owns);
  }
  close(sockets[1]);
  agent::Must(cudaFree(nullptr), "starting CUDA");
  void* memory = victim_owns ? Borrow(sockets[0]) : Own(sockets[0]);
  char written = 0;
  const bool told = read(sockets[0], &written, 1) == 1;
  const bool shared = told && Holds(memory, 0x5a);
  kill(victim, SIGKILL);
  waitpid(victim, nullptr, 0);
  const bool closed = read(sockets[0], &written, 1) == 0;
  agent::Must(cudaMemset(memory, 0x77, kBytes), "writing after the kill");
  const bool alive = Holds(memory, 0x77);
  size_t before = 0, after = 0, total = 0;
  agent::Must(cudaMemGetInfo(&before, &total), "free memory");
  Unmap(memory);
  agent::Must(cudaMemGetInfo(&after, &total), "free memory");
  const bool freed = after >= before + kBytes;
  const bool right = shared && closed && alive && freed;
  const auto said = [](bool yes) { return yes ? "yes" : "NO"; };
  Line(victim_owns ? "kill -9 of who owns bucket memory" : "kill -9 of who borrows bucket memory",
       absl::StrCat("bytes seen before ", said(shared), ", end seen ", said(closed),
                    ", memory usable after ", said(alive), ", given back ", said(freed)),
       "all", right ? "right" : "WRONG");
  return right;
}

}  // namespace

Verdict CheckSharing() {
  bool right = true;
  for (const bool victim_owns : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      const bool survived = Survive(victim_owns);
      std::fflush(stdout);
      std::_Exit(survived ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    right = right && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return right ? Verdict::kRight : Verdict::kWrong;
}

}  // namespace bucketd::agent
