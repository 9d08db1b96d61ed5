// A bucketd of a test's own, as a process: it can be stopped and killed.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace bucketd {

class ServerProcess {
 public:
  // Serves when this returns. `address` is unix:/path; a test fails if it does not start.
  ServerProcess(const std::string& address, const std::vector<std::string>& flags);
  ~ServerProcess();  // kills it
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  void Stop();  // SIGSTOP; returns when no thread runs any more
  void Continue();
  void Terminate();  // SIGTERM

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

}  // namespace bucketd
