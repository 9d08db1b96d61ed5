// Measured samples, with who measured them, until they are fitted or too old. Bounded in every
// direction: of each class and size the newest few of each voter; voters of a class; classes of a
// profile; all together. Whoever floods pushes out its own samples first.
//
// Servers that share a store hold the same samples: each class is written only if it is still what
// this server read, and read again if it is not, and all of them before they are fitted. What could
// not be stored is forgotten once another server has written the class.
//
// A voter is who counts once in a fit: the caller's identity where callers have one, else the host
// that a report came from (host.h), since nobody chooses either at will; on a unix socket, where
// its permissions say who may speak, the host that the report names.
//
// Thread-safe. Every call but the constructor may block on the store: never on a gRPC thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/base/digest.h"
#include "passes/cost/cost_report.h"
#include "passes/cost/measured_fit.h"
#include "server/costs/cost_metrics.h"
#include "server/store/store.h"

namespace bucketd {

struct CostSampleLimits {
  int64_t total = 100'000;
  size_t classes = 256;  // of a profile
  size_t voters = 32;    // of a class; beyond, the one silent for longest goes
  size_t each = 8;       // of a voter, class and size (power of two)
  int64_t max_age_ms = int64_t{30} * 24 * 3600 * 1000;
};

// `name`: the caller's identity, "" where callers have none; `peer` as gRPC gives it:
// "ipv4:10.0.0.3:5123", "unix:/run/...".
std::string VoterOf(absl::string_view name, absl::string_view peer, absl::string_view reporter);

struct HeldClass {
  std::string profile;
  LinkClass of;
  int32_t samples = 0;
  int32_t voters = 0;
  int64_t newest_unix_ms = 0;
};

class CostSamples {
 public:
  // Both outlive this. `now_ms`: of the wall clock.
  CostSamples(Store& store, CostMetrics& metrics, const CostSampleLimits& limits,
              std::function<int64_t()> now_ms);

  // Reads the store. What cannot be read is counted, named in the log and left out.
  // STORE_UNAVAILABLE.
  absl::Status Load();

  struct Taken {
    int32_t accepted = 0;
    int32_t limited = 0;
  };
  // REQUIRES: the report and its samples are valid, and the profile's name is one.
  // STORE_UNAVAILABLE if they are held but not stored.
  absl::StatusOr<Taken> Add(const CostReport& report, absl::string_view voter,
                            const Actor& actor = {});

  // What is held for a profile, without what is too old; classes ascending.
  std::vector<ClassSamples> Get(absl::string_view profile);
  std::vector<HeldClass> List(absl::string_view profile);  // "": of all

 private:
  struct Provenance {
    CostProvenance by;
    std::string voter;
    int64_t received_ms = 0;
  };
  struct Kept {
    int64_t bytes = 0, picoseconds = 0;
    int32_t launches = 1;
    bool packed = false;
    std::shared_ptr<const Provenance> from;
  };
  // By power of two, grouped launches apart; the oldest first.
  using BySize = std::map<int, std::deque<Kept>>;
  using ByVoter = std::map<std::string, BySize>;
  using ByClass = std::map<LinkClass, ByVoter>;

  bool Insert(const std::string& profile, const LinkClass& of, Kept sample)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropQuietest(ByVoter& voters) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As the store is to hold it.
  static std::string Serialize(const std::string& profile, const LinkClass& of,
                               const ByVoter& voters);
  void Read(const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CatchUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<std::string>> CatchUp(const std::string& profile,
                                                     const LinkClass& of)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddToClass(const std::string& profile, const LinkClass& of,
                          const std::vector<Kept>& samples, const Actor& actor, Taken& taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const std::string& profile, const LinkClass& of)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseIfStill(const std::string& profile, const LinkClass& of)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store& store_;
  CostMetrics& metrics_;
  const CostSampleLimits limits_;
  const std::function<int64_t()> now_ms_;
  absl::Mutex mutex_;
  std::map<std::string, ByClass, std::less<>> held_ ABSL_GUARDED_BY(mutex_);
  int64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Digest> read_ ABSL_GUARDED_BY(mutex_);  // by key: as read or written here
  std::optional<int64_t> seen_ ABSL_GUARDED_BY(mutex_);         // the version of the store
};

}  // namespace bucketd
