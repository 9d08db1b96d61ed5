#include "gpu_agent/run/command.h"

namespace bucketd::agent {

void AddSessionFlags(const Command& command, SessionOptions& options) {
  command
      .AddOption(kBackendFlag, options.backend,
                 "what moves the bytes: ring, nccl, or auto: nccl where each rank finds a GPU")
      .TakeLast()
      .ShowDefault();
  command
      .AddOption(kInterfaceFlag, options.tcp_interface,
                 "the ring over TCP on this interface, by name or address (lo, say), instead of "
                 "unix sockets")
      .TypeName("IF");
  command.AddOption("--ranks", options.ranks, "ranks on this machine; the program starts them")
      .InRange(2, 64)
      .ShowDefault();
  command.AddOption(kRankFlag, options.rank, "").Hidden();
  command.AddOption(kFolderFlag, options.folder, "").Hidden();
}

}  // namespace bucketd::agent
