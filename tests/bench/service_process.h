// A server of a benchmark: a process of its own, whose CPU time can be read.
#pragma once

#include <time.h>

#include <string>
#include <vector>

#include <sys/types.h>

namespace bucketd {

class Process {
 public:
  // argv[0] is looked up in PATH. Its output goes to `log`. Runs on `cpu` alone unless that is -1.
  // It dies with this process.
  Process(const std::vector<std::string>& argv, const std::string& log, int cpu);
  ~Process();  // SIGKILL
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // User and system time of all its threads so far, in microseconds.
  double CpuMicros() const;
  bool running() const;

 private:
  pid_t pid_ = -1;
  clockid_t clock_ = 0;
};

// Keeps this process to `cpu`; no-op for -1.
void PinThisProcess(int cpu);

}  // namespace bucketd
