// The rings of a node's trainers: takes them in at a unix socket, reads them ten times a second,
// and lets go of those that do not hold together, or whose process is gone. A child of it may have
// the connection still: so the process is watched as well, where this one can (Linux 5.3 or newer,
// and a namespace of processes that it sees). Connections, and what comes over them that is no
// ring, are closed by a thread that may be held by that.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <sys/socket.h>
#include <sys/types.h>

#include "gpu_agent/comm/socket.h"
#include "gpu_agent/device/host_stream.h"
#include "gpu_agent/device/steady.h"
#include "gpu_agent/telemetry/reader.h"

namespace bucketd::agent {

struct CollectorOptions {
  std::string socket;       // its path; one that a dead agent left is replaced
  bool any_user = false;    // else this process's and root
  size_t most_rings = 256;  // trainers at a time; more are refused. With any_user a user has at
                            // most half of those that others leave
};

// What becomes of the rings. Called on the collector's thread, which it must not hold up.
class CollectorEvents {
 public:
  virtual ~CollectorEvents() = default;
  virtual void Opened(int ring) = 0;
  virtual void Refused(const std::string& why) = 0;
  // Of one ring, new; maybe none. `reader` says whose they are.
  virtual void Ran(int ring, const RingReader& reader, const std::vector<RunRecord>& records) = 0;
  // `why` is "" where its process has ended, or let go of it.
  virtual void Closed(int ring, const std::string& why) = 0;
};

class Collector {
 public:
  // `events` outlives it. UNAVAILABLE where the socket cannot be made, or an agent has it.
  static absl::StatusOr<std::unique_ptr<Collector>> Start(const CollectorOptions& options,
                                                          CollectorEvents& events);
  ~Collector();

 private:
  struct Trainer {
    Fd connection;
    Fd process;                        // readable once it has ended; none: it cannot be watched
    bool ended = false;                // it had before it was taken in
    std::unique_ptr<RingReader> ring;  // null: it has not come yet
    int id = 0;
    SteadyTime give_up;
    uid_t user = 0;
  };

  Collector(const CollectorOptions& options, CollectorEvents& events,
            std::unique_ptr<HostStream> closer, Fd listener, Fd wake);
  void Poll(std::vector<pollfd>& waits, SteadyTime until) const;
  void Run();
  void Accept();
  absl::Status MayReport(const std::optional<ucred>& peer) const;
  // False: it is over.
  bool Hear(Trainer& trainer);
  bool Take(Trainer& trainer, Fd& memory);
  void LetGo(Fd strange);
  absl::Status Read(Trainer& trainer);
  void End(Trainer& trainer, const std::string& why);

  const CollectorOptions options_;
  CollectorEvents& events_;
  std::unique_ptr<HostStream> closer_;  // of connections, and of what came that is no ring
  const Fd listener_, wake_;
  std::atomic<bool> stopped_{false};
  std::vector<Trainer> trainers_;
  std::vector<RunRecord> records_;
  int last_id_ = 0;
  bool accepts_ = true;  // not for the rest of a period in which there was no descriptor for one
  std::thread thread_;
};

}  // namespace bucketd::agent
