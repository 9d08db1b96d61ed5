#include "tests/client/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

namespace bucketd {

ServerProcess::ServerProcess(const std::string& address, const std::vector<std::string>& flags) {
  std::vector<std::string> args = {absl::StrCat(getenv("BUCKETD_BIN"), "/bucketd"),
                                   "--listen",
                                   address,
                                   "--http",
                                   "",
                                   "--log-level",
                                   "error"};
  args.insert(args.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out[1]);
  output_ = out[0];
  std::string line;
  for (char c = 0; read(output_, &c, 1) == 1 && c != '\n';) line.push_back(c);
  EXPECT_TRUE(absl::StrContains(line, "serves on")) << line;
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) close(output_);
}

void ServerProcess::Stop() {
  kill(pid_, SIGSTOP);
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOWAIT), 0);
}

void ServerProcess::Continue() { kill(pid_, SIGCONT); }

void ServerProcess::Terminate() { kill(pid_, SIGTERM); }

}  // namespace bucketd
