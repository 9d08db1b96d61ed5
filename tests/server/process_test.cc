// The bucketd program: flags, files, signals, exit codes.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include <sys/stat.h>
#include <sys/wait.h>

#include "server/process/ready_file.h"
#include "server/process/signals.h"
#include "tests/temp_folder.h"

namespace bucketd {
namespace {

TEST(StopSignalsTest, WhoeverHasEndedByItselfIsNotWaitedFor) {
  const auto signals = StopSignals::Create();
  ASSERT_TRUE(signals.ok());
  (*signals)->Ended();
  EXPECT_EQ((*signals)->Wait(), StopSignals::Cause::kEnded);
  kill(getpid(), SIGTERM);  // blocked: it comes to Wait() alone, and counts more
  EXPECT_EQ((*signals)->Wait(), StopSignals::Cause::kSignal);
  StopSignals::RestoreDefaults();
}

TEST(ReadyFileTest, IsOneObjectInALineWithoutATemporaryBeside) {
  const TempFolder temp;
  const std::string& folder = temp.path();
  ASSERT_TRUE(WriteReadyFile(folder + "/ready", {{"http", "a\"b"}, {"epoch", int64_t{3}}}).ok());
  std::ifstream file(folder + "/ready");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(),
            absl::StrCat("{\"http\": \"a\\\"b\", \"epoch\": 3, \"pid\": ", getpid(), "}\n"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  const absl::Status nowhere = WriteReadyFile(folder + "/no/ready", {});
  EXPECT_EQ(nowhere.message(), absl::StrCat("--ready-file: cannot write ", folder,
                                            "/no/ready: No such file or directory"));
}

class ProcessTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (out_ != nullptr) std::fclose(out_);
  }

  // In a child process; does not return.
  [[noreturn]] static void Exec(const std::vector<std::string>& args, int out) {
    const std::string program = absl::StrCat(getenv("BUCKETD_BIN"), "/bucketd");
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(127);
  }

  // With stdout and stderr in out_. `between`: started by a process that then waits for its stdin
  // to be closed, whose other end is parent_.
  void Start(std::vector<std::string> args, bool between = false) {
    int output[2];
    int parent[2];
    ASSERT_EQ(pipe2(output, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(parent, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      if (!between) Exec(args, output[1]);
      if (fork() == 0) Exec(args, output[1]);
      close(parent[1]);
      char byte = 0;
      _exit(static_cast<int>(read(parent[0], &byte, 1)));
    }
    close(output[1]);
    close(parent[0]);
    parent_ = parent[1];
    out_ = fdopen(output[0], "r");
  }

  std::string ReadLine() {
    std::string line;
    for (int c = 0; (c = std::fgetc(out_)) != EOF && c != '\n';)
      line.push_back(static_cast<char>(c));
    return line;
  }

  std::string ReadAll() {
    std::string text;
    for (int c = 0; (c = std::fgetc(out_)) != EOF;) text.push_back(static_cast<char>(c));
    return text;
  }

  int ExitCode() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
  pid_t pid_ = 0;
  int parent_ = -1;
  std::FILE* out_ = nullptr;
};

TEST_F(ProcessTest, OfTwoFlagsThatSetOneThingTheLaterHolds) {
  Start({"--check", "--store", "/first", "--store-dir", "/later"});
  const std::string text = ReadAll();
  EXPECT_TRUE(absl::StrContains(text, "\nstore = \"/later\" ")) << text;
  EXPECT_EQ(ExitCode(), 0);
}

TEST_F(ProcessTest, CheckRefusesWhatAStartWouldRefuseOfFilesAndOfTheStoresAddress) {
  const std::string tenants = absl::StrCat(folder_, "/tenants.toml");
  std::ofstream(tenants) << "[[tenant]]\nnam = \"a\"\n";
  const std::vector<std::string> files = {"--tls-certificate-file", folder_ + "/absent.pem",
                                          "--tls-key-file",         folder_ + "/absent.key",
                                          "--tls-client-ca-file",   folder_ + "/absent.ca",
                                          "--identities-file",      folder_ + "/absent.toml"};
  std::vector<std::string> args = {"--check", "--tenants-file", tenants, "--store", "mysql://db/x"};
  args.insert(args.end(), files.begin(), files.end());
  Start(args);
  const std::string text = ReadAll();
  EXPECT_TRUE(absl::StrContains(text, "absent.pem")) << text;
  EXPECT_TRUE(absl::StrContains(text, "tenants.toml:2: ")) << text;
  EXPECT_TRUE(absl::StrContains(text, "--store: expected postgres://")) << text;
  EXPECT_FALSE(absl::StrContains(text, "listen = ")) << text;
  EXPECT_EQ(ExitCode(), 2);
}

TEST_F(ProcessTest, ServesUntilSigtermThenExitsWithZero) {
  const std::string ready = absl::StrCat(folder_, "/ready.json");
  const std::string socket = absl::StrCat(folder_, "/socket");
  Start({"--listen", "unix:" + socket, "--http", "127.0.0.1:0", "--ready-file", ready,
         "--lame-duck-ms", "0", "--log-json"});
  const std::string line = ReadLine();
  EXPECT_TRUE(absl::StrContains(line, "serves on unix:" + socket)) << line;
  std::stringstream json;
  json << std::ifstream(ready).rdbuf();
  EXPECT_TRUE(absl::StartsWith(
      json.str(), absl::StrCat("{\"address\": \"unix:", socket, "\", \"http\": \"127.0.0.1:")))
      << json.str();
  EXPECT_TRUE(absl::StrContains(json.str(), absl::StrCat("\"pid\": ", pid_, "}"))) << json.str();
  struct stat mode {};
  ASSERT_EQ(stat(socket.c_str(), &mode), 0);
  EXPECT_EQ(mode.st_mode & 0777, 0600U) << "only its owner may connect";

  kill(pid_, SIGTERM);
  const std::string rest = ReadAll();
  EXPECT_EQ(ExitCode(), 0);
  EXPECT_TRUE(absl::StrContains(rest, "\"message\":\"stopped\"")) << rest;
  EXPECT_FALSE(std::filesystem::exists(socket));
  EXPECT_FALSE(std::filesystem::exists(ready)) << "nobody should find a server that is gone";
}

TEST_F(ProcessTest, PrintsThePortThatItChose) {
  Start({"--listen", "127.0.0.1:0", "--http", "", "--lame-duck-ms", "0"});
  const std::string line = ReadLine();
  EXPECT_TRUE(absl::StrContains(line, "serves on 127.0.0.1:")) << line;
  EXPECT_FALSE(absl::StrContains(line, "127.0.0.1:0")) << line;
  kill(pid_, SIGINT);
  EXPECT_EQ(ExitCode(), 0);
}

TEST_F(ProcessTest, EndsWithTheProcessThatStartedIt) {
  Start({"--listen", absl::StrCat("unix:", folder_, "/socket"), "--http", "", "--exit-with-parent",
         "--drain-seconds", "1", "--lame-duck-ms", "0"},
        /*between=*/true);
  EXPECT_TRUE(absl::StrContains(ReadLine(), "serves on"));
  close(parent_);  // the process between ends
  EXPECT_EQ(ExitCode(), 0);
  // The pipe closes when bucketd, the last to hold it, is gone.
  EXPECT_TRUE(absl::StrContains(ReadAll(), "the parent process ended"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/socket"));
}

TEST_F(ProcessTest, DoesNotStartUnderAnotherParentThanWasNamed) {
  Start({"--listen", absl::StrCat("unix:", folder_, "/socket"), "--exit-with-parent=4194304"});
  EXPECT_TRUE(absl::StrContains(ReadAll(), "--exit-with-parent: ")) << "says which flag";
  EXPECT_EQ(ExitCode(), 1);
}

TEST_F(ProcessTest, WrongFlagsAreUsageErrorsThatNameTheFlag) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"--listen: ", {"--listen", "0.0.0.0:0"}},
      {"--listen: ", {"--listen", "unix:relative"}},
      {"--log-level: ", {"--log-level", "loud"}},
      {"--socket-mode: ", {"--socket-mode", "9"}},
      {"--drain-seconds: ", {"--drain-seconds", "-1"}},
      {"--max-graph-bytes: ", {"--max-graph-bytes", "0"}},
      {"--max-waiting", {"--max-waiting", "many"}},
      {"--frobnicate", {"--frobnicate"}},
      {"bucketd: --max-waiting: ", {"--max-waiting"}},
  };
  for (const auto& [expected, args] : cases) {
    Start(args);
    const std::string output = ReadAll();
    EXPECT_TRUE(absl::StrContains(output, expected)) << expected << " in: " << output;
    EXPECT_EQ(ExitCode(), 2) << output;
    std::fclose(out_);
    out_ = nullptr;
  }
}

TEST_F(ProcessTest, HelpNamesEveryFlagWithItsDefault) {
  Start({"--help"});
  const std::string help = ReadAll();
  EXPECT_EQ(ExitCode(), 0);
  for (const char* flag :
       {"--listen", "--http", "--insecure", "--ready-file", "--exit-with-parent", "--drain-seconds",
        "--max-graph-bytes", "--max-graph-nodes", "--max-chunk-bytes", "--max-inline-bytes",
        "--max-uploads", "--max-waiting", "--compute-slots", "--plan-cache-bytes",
        "--graph-cache-bytes", "--log-level", "--log-json"}) {
    EXPECT_TRUE(absl::StrContains(help, flag)) << flag;
  }
  EXPECT_TRUE(absl::StrContains(help, "127.0.0.1:9460"));
}

}  // namespace
}  // namespace bucketd
