// A PostgreSQL of the test's own, and a PgBouncer before it: in a folder that goes with it, on
// sockets there, as user postgres where the test is root. Without fsync.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/temp_folder.h"

namespace bucketd::store_test {

class PostgresCluster {
 public:
  // Started with the first call; ends with the program. Aborts it where that fails.
  static PostgresCluster& Get();
  ~PostgresCluster();

  // A new database; the owner may do all there.
  std::string NewDatabase();
  std::string Url(const std::string& database, const std::string& user = "bucketd") const;
  std::string PoolerUrl(const std::string& database) const;  // transaction pooling
  // Statements of the owner. "" or psql's complaint.
  std::string Sql(const std::string& database, const std::string& statements) const;
  // One value.
  std::string Ask(const std::string& database, const std::string& query) const;
  // Runs a program of PostgreSQL's, as whom the engine runs. Its exit code.
  int Run(const std::vector<std::string>& command) const;
  // Ends the engine at once and starts it again: connections break.
  void Stop();
  void Start();
  // SIGSTOP and SIGCONT to all of the engine's processes: nothing answers, nothing breaks.
  void Freeze(bool frozen) const;

 private:
  PostgresCluster();
  pid_t Spawn(const std::vector<std::string>& command) const;
  void AwaitSocket(const std::string& name) const;

  const TempFolder temp_{Scratch()};
  const std::string& folder_ = temp_.path();
  pid_t engine_ = 0, pooler_ = 0;
  int databases_ = 0;
};

}  // namespace bucketd::store_test
