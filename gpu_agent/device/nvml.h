// Who computes on this machine's GPUs, by the driver's own library (NVML), without a context on any
// of them: none of their memory is taken.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace bucketd::agent {

// Stays initialised until it ends. Thread-safe.
class Nvml {
 public:
  // libnvidia-ml.so.1, or the file that the environment's BUCKETD_NVML_LIB names. UNAVAILABLE
  // without it, without a driver, or with one that lacks what is called here (before 510).
  static absl::StatusOr<std::unique_ptr<Nvml>> Open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // A process with a compute context on one of the machine's GPUs, other than bucket-agents: "GPU
  // 2: process 4711 (python)". "" if there is none. UNAVAILABLE where NVML does not tell it of one
  // of the GPUs: somebody may compute there. In a container, processes outside of it have numbers
  // without names.
  absl::StatusOr<std::string> Computing() const;

  // Whether NVML knows this process, which has a context on one of the GPUs, by its number. In a
  // container without the host's processes it may say the host's numbers: then Computing() takes
  // every agent, this one too, for somebody else.
  bool KnowsThisProcess() const;

 private:
  struct Api;
  explicit Nvml(std::unique_ptr<Api> api);
  const std::unique_ptr<Api> api_;
};

}  // namespace bucketd::agent
