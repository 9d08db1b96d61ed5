#include "gpu_agent/run/session.h"

#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "gpu_agent/comm/endpoint.h"
#include "gpu_agent/comm/rendezvous.h"
#include "gpu_agent/comm/ring.h"
#include "gpu_agent/comm/ring_connect.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(30);
constexpr char kTokenFile[] = "token";
constexpr int kMostRanks = 64;  // of a sweep

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// Ranks that share processors measure the scheduler. Each takes its share of those that this
// program may use, if there are enough of them.
void BindToShare(int rank, int ranks) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::vector<size_t> processors;
  for (size_t p = 0; p < CPU_SETSIZE; ++p) {
    if (CPU_ISSET(p, &allowed)) processors.push_back(p);
  }
  const size_t share = processors.size() / static_cast<size_t>(ranks);
  cpu_set_t own;
  CPU_ZERO(&own);
  for (size_t i = 0; i < share; ++i)
    CPU_SET(processors[static_cast<size_t>(rank) * share + i], &own);
  if (share > 0) sched_setaffinity(0, sizeof(own), &own);
}

std::string HowEnded(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("was ended by signal ", WTERMSIG(status));
  return absl::StrCat("ended with exit code ", WEXITSTATUS(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const SessionOptions& options,
                                                       const std::vector<std::string>& arguments) {
  RETURN_IF_ERROR(Check(options));
  std::unique_ptr<Session> session(new Session(options));
  ASSIGN_OR_RETURN(session->backend_, Backend::Open(options.backend, session->local_rank_,
                                                    options.ranks, options.tcp_interface));
  if (options.rank < 0) {
    std::fprintf(stderr, "backend %s\n", session->backend_->reason().c_str());
    if (options.nodes == 1) RETURN_IF_ERROR(session->MakeFolder());
    RETURN_IF_ERROR(session->StartOthers(arguments));
  } else {
    // Nobody is left to work for once the first is gone.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (options.nodes == 1) RETURN_IF_ERROR(session->ReadToken());
  }
  BindToShare(session->local_rank_, options.ranks);
  return session;
}

absl::Status Session::Check(const SessionOptions& options) {
  if (options.node < 0 || options.node >= options.nodes) {
    return absl::OutOfRangeError(absl::StrCat("--node: ", options.node, " of ", options.nodes,
                                              "; expected less than --nodes"));
  }
  const int ranks = options.ranks * options.nodes;
  if (ranks < 2 || ranks > kMostRanks) {
    return absl::OutOfRangeError(
        absl::StrCat("--ranks: ", ranks, " of all nodes; expected 2 to ", kMostRanks));
  }
  if (options.nodes > 1 && options.tcp_interface.empty()) {
    return absl::OutOfRangeError(
        absl::StrCat(kInterfaceFlag, " is needed: where do the other nodes reach this one?"));
  }
  if (options.tcp_interface.empty()) return absl::OkStatus();
  const absl::Status known = LocalAddress(options.tcp_interface).status();
  if (known.ok()) return known;
  return absl::OutOfRangeError(absl::StrCat(kInterfaceFlag, ": ", known.message()));
}

Session::Session(const SessionOptions& options)
    : options_(options),
      local_rank_(options.rank < 0 ? 0 : options.rank),
      folder_(options.folder) {}

Session::~Session() {
  for (const pid_t other : others_) {
    if (other == 0) continue;
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
  }
  if (options_.rank < 0 && !folder_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
}

// A folder of this user alone with the ring's secret in it.
absl::Status Session::MakeFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "bucket-agent.XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return SystemError(path);
  folder_ = path;
  std::string secret(32, '\0');
  if (getentropy(secret.data(), secret.size()) != 0) return SystemError("a random token");
  token_ = absl::BytesToHexString(secret);
  const std::string file = absl::StrCat(folder_, "/", kTokenFile);
  std::ofstream stream(file);
  chmod(file.c_str(), 0600);
  stream << token_;
  stream.close();
  return stream ? absl::OkStatus() : SystemError(file);
}

absl::Status Session::ReadToken() {
  std::ifstream stream(absl::StrCat(folder_, "/", kTokenFile));
  if (stream >> token_) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(kFolderFlag, ": ", folder_, " has no token"));
}

absl::Status Session::StartOthers(const std::vector<std::string>& arguments) {
  for (int rank = 1; rank < options_.ranks; ++rank) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {kBackendFlag, backend(), kRankFlag, absl::StrCat(rank)});
    if (!folder_.empty()) all.insert(all.end(), {kFolderFlag, folder_});
    std::vector<char*> pointers;
    for (std::string& argument : all) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_t pid = 0;
    errno = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, pointers.data(), environ);
    if (errno != 0) return SystemError(absl::StrCat("rank ", rank, " cannot be started"));
    others_.push_back(pid);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> Session::Connect(const std::string& group) {
  const std::string folder = absl::StrCat(folder_, "/", groups_++);
  ASSIGN_OR_RETURN(const std::unique_ptr<FolderRendezvous> rendezvous,
                   FolderRendezvous::Open(folder));
  RingConnectOptions options;
  options.self.group = group;
  options.self.rank = local_rank_;
  options.self.size = options_.ranks;
  options.token = token_;
  options.tcp_interface = options_.tcp_interface;
  if (options.tcp_interface.empty()) options.unix_folder = folder;
  options.deadline = absl::Now() + kConnectTimeout;
  options.still_come = [this] { return Lost(); };
  ASSIGN_OR_RETURN(RingPeers peers, ConnectRing(options, *rendezvous));
  RingOptions ring;
  ring.timeout = absl::Minutes(2);
  return backend_->Connect(std::move(peers), ring, group);
}

absl::StatusOr<std::unique_ptr<Group>> Session::Meet(client::AgentClient& client,
                                                     GroupOptions options) {
  options.rank = rank();
  options.size = ranks();
  options.tcp_interface = options_.tcp_interface;
  return Group::Meet(client, *backend_, options);
}

absl::Status Session::Ended(size_t i, int status) {
  others_[i] = 0;
  if (status == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("rank ", rank() + static_cast<int>(i) + 1, " ", HowEnded(status)));
}

absl::Status Session::Lost() {
  for (size_t i = 0; i < others_.size(); ++i) {
    int status = 0;
    if (others_[i] == 0 || waitpid(others_[i], &status, WNOHANG) != others_[i]) continue;
    RETURN_IF_ERROR(Ended(i, status));
  }
  return absl::OkStatus();
}

absl::Status Session::Join() {
  absl::Status first;
  for (size_t i = 0; i < others_.size(); ++i) {
    int status = 0;
    if (others_[i] == 0) continue;
    if (waitpid(others_[i], &status, 0) != others_[i]) return SystemError("waitpid");
    const absl::Status ended = Ended(i, status);
    if (first.ok()) first = ended;
  }
  return first;
}

}  // namespace bucketd::agent
