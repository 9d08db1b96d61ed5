#include "tests/server/postgres_cluster.h"

#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <libpq-fe.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

namespace bucketd::store_test {
namespace {

namespace fs = std::filesystem;

constexpr char kBin[] = "/usr/lib/postgresql/15/bin/";
constexpr int kPort = 5432, kPoolerPort = 6432;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "PostgreSQL for the tests: %s\n", what.c_str());
  std::abort();
}

const passwd& Postgres() {
  const passwd* user = getpwnam("postgres");
  if (user == nullptr) Fail("no user postgres: install deploy/packages.txt");
  return *user;
}

std::string Socket(int port) { return absl::StrCat(".s.PGSQL.", port); }

}  // namespace

PostgresCluster& PostgresCluster::Get() {
  static PostgresCluster cluster;
  return cluster;
}

PostgresCluster::PostgresCluster() {
  if (geteuid() == 0 && chown(folder_.c_str(), Postgres().pw_uid, Postgres().pw_gid) != 0) {
    Fail("chown");
  }
  if (Run({absl::StrCat(kBin, "initdb"), "-D", folder_ + "/data", "-U", "bucketd", "-A", "trust",
           "-E", "UTF8", "--locale=C", "--no-sync"}) != 0) {
    Fail("initdb");
  }
  std::ofstream(folder_ + "/data/pg_hba.conf") << "local all locked scram-sha-256\n"
                                                  "local all all trust\n"
                                                  "local replication all trust\n";
  std::ofstream(folder_ + "/pooler.ini")
      << "[databases]\n* = host=" << folder_ << " port=" << kPort << " user=bucketd\n[pgbouncer]\n"
      << "listen_addr =\nlisten_port = " << kPoolerPort << "\nunix_socket_dir = " << folder_
      << "\nauth_type = any\npool_mode = transaction\nmax_client_conn = 100\n"
      << "default_pool_size = 2\nlogfile = " << folder_ << "/pooler.log\n";
  Start();
  pooler_ = Spawn({"/usr/sbin/pgbouncer", "-q", folder_ + "/pooler.ini"});
  AwaitSocket(Socket(kPoolerPort));
}

PostgresCluster::~PostgresCluster() {
  if (pooler_ > 0) kill(pooler_, SIGKILL), waitpid(pooler_, nullptr, 0);
  Stop();
}

pid_t PostgresCluster::Spawn(const std::vector<std::string>& command) const {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const bool root = geteuid() == 0;
  const passwd* user = root ? &Postgres() : nullptr;
  const std::string log = folder_ + "/log";
  const pid_t child = fork();
  if (child != 0) return child;
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
  dup2(out, 1);
  dup2(out, 2);
  if (root && (setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0)) _exit(126);
  prctl(PR_SET_PDEATHSIG, SIGQUIT);
  if (chdir("/") == 0) execv(argv[0], argv.data());
  _exit(127);
}

int PostgresCluster::Run(const std::vector<std::string>& command) const {
  int status = 0;
  waitpid(Spawn(command), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void PostgresCluster::AwaitSocket(const std::string& name) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  absl::StrCat(folder_, "/", name).copy(address.sun_path, sizeof(address.sun_path) - 1);
  for (int tries = 0; tries < 3000; ++tries) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int rc = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    close(fd);
    if (rc == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  Fail(absl::StrCat("nobody listens on ", address.sun_path));
}

void PostgresCluster::Start() {
  engine_ = Spawn({absl::StrCat(kBin, "postgres"), "-D", folder_ + "/data", "-k", folder_, "-h", "",
                   "-p", absl::StrCat(kPort), "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c",
                   // The pooler keeps those of each test's database for a while.
                   "max_connections=200", "-c", "autovacuum=off"});
  AwaitSocket(Socket(kPort));
  while (!Sql("postgres", "SELECT 1").empty()) {  // it listens before it serves
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void PostgresCluster::Stop() {
  if (engine_ <= 0) return;
  kill(engine_, SIGQUIT);
  waitpid(engine_, nullptr, 0);
  engine_ = 0;
}

void PostgresCluster::Freeze(bool frozen) const {
  // Each backend is a group of its own; its parent is the postmaster.
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat");
    std::string pid, name, state, parent;
    if (!(stat >> pid >> name)) continue;
    while (name.back() != ')' && stat >> state) name += state;
    if (!(stat >> state >> parent) || parent != absl::StrCat(engine_)) continue;
    kill(static_cast<pid_t>(std::stol(pid)), frozen ? SIGSTOP : SIGCONT);
  }
  kill(engine_, frozen ? SIGSTOP : SIGCONT);
}

std::string PostgresCluster::Url(const std::string& database, const std::string& user) const {
  return absl::StrCat("postgres://", user, "@/", database,
                      "?host=", absl::StrReplaceAll(folder_, {{"/", "%2F"}}), "&port=", kPort);
}

std::string PostgresCluster::PoolerUrl(const std::string& database) const {
  return absl::StrReplaceAll(
      Url(database), {{absl::StrCat("&port=", kPort), absl::StrCat("&port=", kPoolerPort)}});
}

std::string PostgresCluster::NewDatabase() {
  const std::string name = absl::StrCat("db", ++databases_);
  const std::string problem = Sql("postgres", absl::StrCat("CREATE DATABASE ", name));
  if (!problem.empty()) Fail(problem);
  return name;
}

std::string PostgresCluster::Sql(const std::string& database, const std::string& sql) const {
  const std::unique_ptr<PGconn, decltype(&PQfinish)> db(PQconnectdb(Url(database).c_str()),
                                                        PQfinish);
  if (PQstatus(db.get()) != CONNECTION_OK) return PQerrorMessage(db.get());
  PQclear(PQexec(db.get(), sql.c_str()));
  return PQerrorMessage(db.get());
}

std::string PostgresCluster::Ask(const std::string& database, const std::string& query) const {
  const std::unique_ptr<PGconn, decltype(&PQfinish)> db(PQconnectdb(Url(database).c_str()),
                                                        PQfinish);
  const std::unique_ptr<PGresult, decltype(&PQclear)> result(PQexec(db.get(), query.c_str()),
                                                             PQclear);
  if (PQntuples(result.get()) != 1) return absl::StrCat("? ", PQerrorMessage(db.get()));
  return PQgetvalue(result.get(), 0, 0);
}

}  // namespace bucketd::store_test
