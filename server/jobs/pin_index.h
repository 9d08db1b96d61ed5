// What is kept for jobs, by its key in the store, and which job of a tenant goes first when there
// is no room for another one. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

#include "server/store/store.h"

namespace bucketd {

// Keys of records. No part of them holds a newline: tenants and names are printable.
std::string JobPrefix(absl::string_view tenant, absl::string_view job);  // of all of a job's
std::string JobKey(absl::string_view tenant, absl::string_view job);
std::string PinKey(absl::string_view tenant, absl::string_view job, absl::string_view scope);
bool IsPin(absl::string_view key);  // else a job's record
absl::string_view TenantOf(absl::string_view key);
std::string SubjectOf(absl::string_view key);  // for people: "job", "job, scope"

class PinIndex {
 public:
  // Of a tenant's pins, and of its jobs.
  using Limit = std::function<int64_t(absl::string_view tenant)>;
  explicit PinIndex(Limit limit) : limit_(std::move(limit)) {}

  // `ranks`: of the scope, or of the job's largest; 0 if that is not known.
  void Put(const std::string& key, WallTime expires, uint32_t ranks);
  void Erase(const std::string& key);

  int64_t pins() const { return pins_; }
  // What counts against its limit: the larger of its pins and jobs.
  int64_t UsedBy(absl::string_view tenant) const;
  bool HasRoom(const std::string& key) const;
  // The prefix of the job that makes room for this key: the one with the fewest ranks, of those the
  // one unused for longest. Not one with more ranks than `ranks`, nor one that is kept beyond
  // `usual`, as an operator asked. nullopt: there is none.
  std::optional<std::string> Weakest(const std::string& key, uint32_t ranks, WallTime usual) const;
  const std::map<std::string, WallTime>& expiries() const { return expires_; }  // by key
  std::vector<std::string> Jobs(absl::string_view tenant) const;                // names

 private:
  using Worth = std::tuple<uint32_t, WallTime, std::string>;  // ranks, last to expire, prefix
  struct Job {
    uint32_t ranks = 0;
    WallTime expires;
    int64_t records = 0;
  };
  struct Tenant {
    int64_t pins = 0;
    std::map<std::string, Job, std::less<>> jobs;  // by prefix
    std::set<Worth> by_worth;
  };
  const Tenant* Find(absl::string_view key) const;

  const Limit limit_;
  int64_t pins_ = 0;
  std::map<std::string, WallTime> expires_;
  std::map<std::string, Tenant, std::less<>> tenants_;
};

}  // namespace bucketd
