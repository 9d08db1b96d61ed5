// A store in a folder of its own, with a clock that tests move.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

#include "passes/base/digest.h"
#include "server/store/sqlite_store.h"
#include "tests/temp_folder.h"

namespace bucketd::store_test {

namespace fs = std::filesystem;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

inline std::string ReadFile(const std::string& path) {
  std::stringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string KeyOf(int graph, const std::string& tenant = "team") {
  Digest digest{};
  digest[31] = static_cast<uint8_t>(graph);
  return absl::StrCat("bucketd plan key 2\ntenant=\"", tenant, "\"\ngraph=\"", ToHex(digest),
                      "\"\nmode=\"auto\"\n");
}

inline std::string Bytes(size_t size, char seed) {
  std::string bytes(size, seed);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<char>(static_cast<size_t>(seed) + i * i % 251);
  return bytes;
}

struct Counts : StoreObserver {
  static inline std::mutex mutex;  // the store has threads of its own
  void Read(StoreValue, StoreRead result, absl::string_view why) override {
    const std::lock_guard lock(mutex);
    ++reads[result];
    if (!why.empty()) Note(result == StoreRead::kDamaged, why);
  }
  void Wrote(StoreWrite result, absl::string_view why) override {
    const std::lock_guard lock(mutex);
    ++writes[result];
    if (!why.empty()) Note(false, why);
  }
  void Evicted(int64_t plans, int64_t bytes) override {
    const std::lock_guard lock(mutex);
    evicted_plans += plans;
    evicted_bytes += bytes;
  }
  void Problem(bool damage, absl::string_view text) override {
    const std::lock_guard lock(mutex);
    Note(damage, text);
  }
  void Note(bool damage, absl::string_view text) {
    damages += damage ? 1 : 0;
    absl::StrAppend(&problems, text, "\n");
  }
  std::map<StoreRead, int> reads;
  std::map<StoreWrite, int> writes;
  int64_t evicted_plans = 0, evicted_bytes = 0;
  int damages = 0;
  std::string problems;
};

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.directory = folder_ + "/store";
    options_.clock = [this] { return now_; };
    options_.observer = &counts_;
    options_.page_size = 1024;
  }

  void OpenStore() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  absl::Status OpenError() {
    store_.reset();
    return SqliteStore::Open(options_).status();
  }
  void Put(const std::string& key, const std::string& plan, const std::string& tenant = "team") {
    const absl::Status status = store_->PutPlan(key, tenant, plan);
    ASSERT_TRUE(status.ok()) << status;
  }
  // "" if there is none; the error's code name if it cannot be told.
  std::string Get(const std::string& key) {
    const absl::StatusOr<std::optional<std::string>> plan = store_->GetPlan(key);
    if (!plan.ok()) return absl::StatusCodeToString(plan.status().code());
    return plan->value_or("");
  }
  std::string GetRecord(Shelf shelf, const std::string& key) {
    const absl::StatusOr<std::optional<std::string>> value = store_->GetRecord(shelf, key);
    if (!value.ok()) return absl::StatusCodeToString(value.status().code());
    return value->value_or("");
  }
  StoreStats Stats() {
    const absl::StatusOr<StoreStats> stats = store_->Stats();
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.ok() ? *stats : StoreStats();
  }
  // What a process that was killed would leave: copies of the files while the store is open.
  void CopyFilesTo(const std::string& to) {
    fs::create_directory(to);
    for (const char* name : {"store.db", "store.db-wal", "acknowledged"}) {
      const std::string from = absl::StrCat(options_.directory, "/", name);
      if (fs::exists(from)) fs::copy_file(from, to + "/" + name);
    }
  }

  const TempFolder temp_{Scratch()};
  const std::string& folder_ = temp_.path();
  WallTime now_{milliseconds(1'800'000'000'000)};
  Counts counts_;
  SqliteStoreOptions options_;
  std::unique_ptr<SqliteStore> store_;
};

// Runs `body` in a process of its own, whose exit code counts its failures.
template <typename Body>
void InAnotherProcess(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    const bool failed = ::testing::Test::HasFailure();
    std::fflush(nullptr);
    _exit(failed ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

}  // namespace bucketd::store_test
