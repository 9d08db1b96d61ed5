#include "gpu_agent/run/command.h"

namespace bucketd::agent {

void AddSessionFlags(CLI::App& command, SessionOptions& options) {
  command
      .add_option(kBackendFlag, options.backend,
                  "what moves the bytes: ring, nccl, or auto: nccl where each rank finds a GPU")
      ->take_last()
      ->capture_default_str();
  command
      .add_option(kInterfaceFlag, options.tcp_interface,
                  "the ring over TCP on this interface, by name or address (lo, say), instead of "
                  "unix sockets")
      ->type_name("IF");
  command.add_option("--ranks", options.ranks, "ranks on this machine; the program starts them")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  command.add_option(kRankFlag, options.rank)->group("");
  command.add_option(kFolderFlag, options.folder)->group("");
}

}  // namespace bucketd::agent
