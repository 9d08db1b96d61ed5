#include "server/costs/cost_samples.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "proto/cost_store.pb.h"
#include "server/base/errors.h"
#include "server/base/host.h"
#include "server/costs/cost_names.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

constexpr uint32_t kSampleFormatVersion = 1;
constexpr int32_t kSamplePage = 64;
constexpr int kSampleAttempts = 16;  // of a class that others write at the same time

int SizeBin(int64_t bytes, int32_t launches) {
  const int log2 = 63 - __builtin_clzll(static_cast<uint64_t>(bytes));
  return 2 * log2 + (launches > 1 ? 1 : 0);
}

// A link's name comes last, since it may hold any character that prints.
std::string KeyOf(absl::string_view profile, const LinkClass& of) {
  return absl::StrCat(profile, "/", Name(of.kind), "/", Name(of.dtype), "/", of.group_size, "/",
                      of.ranks_per_node, "/", of.link_class);
}

// Earlier versions took each address of IPv6 for a voter.
std::string VoterAsOfNow(const std::string& stored) {
  return absl::StartsWith(stored, "ipv6:") ? HostOf(stored) : stored;
}

template <typename BySize>
int64_t NewestOf(const BySize& sizes) {
  int64_t newest = 0;
  for (const auto& [bin, samples] : sizes) {
    newest = std::max(newest, samples.back().from->received_ms);
  }
  return newest;
}

template <typename BySize>
int64_t CountOf(const BySize& sizes) {
  int64_t count = 0;
  for (const auto& [bin, samples] : sizes) count += static_cast<int64_t>(samples.size());
  return count;
}

}  // namespace

std::string VoterOf(absl::string_view name, absl::string_view peer, absl::string_view reporter) {
  if (!name.empty()) return absl::StrCat("name:", name);
  // The socket's permissions say who speaks here.
  if (absl::StartsWith(peer, "unix:")) return absl::StrCat("host:", reporter);
  const std::string host = HostOf(peer);
  // A local caller has many addresses.
  const bool local = absl::StartsWith(host, "ipv4:127.") || host == HostOf("ipv6:[::1]");
  return local ? "loopback" : host;
}

CostSamples::CostSamples(Store& store, CostMetrics& metrics, const CostSampleLimits& limits,
                         std::function<int64_t()> now_ms)
    : store_(store), metrics_(metrics), limits_(limits), now_ms_(std::move(now_ms)) {}

absl::Status CostSamples::Load() {
  const absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(ReadAll());
  Expire();
  return absl::OkStatus();
}

absl::Status CostSamples::ReadAll() {
  const absl::StatusOr<int64_t> version = store_.Version();
  std::vector<Record> records;
  const absl::Status listed =
      store_.ForEachRecord(Shelf::kCostSamples, "", kSamplePage, [&](const Record& record) {
        records.push_back(record);
        return absl::OkStatus();
      });
  if (!listed.ok()) return WithReason(Reason::kStoreUnavailable, listed);
  held_.clear();
  read_.clear();
  total_ = 0;
  for (const Record& record : records) Read(record);
  if (version.ok()) seen_ = *version;
  return absl::OkStatus();
}

// Where the store cannot be read, what is held here is the best there is.
void CostSamples::CatchUp() {
  const absl::StatusOr<int64_t> version = store_.Version();
  if (version.ok() && seen_ != *version) ReadAll().IgnoreError();  // counted by the store
}

// What the store has of one class, which is then what is held here.
absl::StatusOr<std::optional<std::string>> CostSamples::CatchUp(const std::string& profile,
                                                                const LinkClass& of) {
  const std::string key = KeyOf(profile, of);
  ASSIGN_OR_RETURN(std::optional<std::string> stored, store_.FindRecord(Shelf::kCostSamples, key));
  if (!stored.has_value()) return stored;  // new, or damaged: then what is held is written anew
  const auto known = read_.find(key);
  if (known != read_.end() && known->second == Sha256(*stored)) return stored;
  Forget(profile, of);
  Read({key, *stored});
  return stored;
}

void CostSamples::Forget(const std::string& profile, const LinkClass& of) {
  ByClass& classes = held_[profile];
  const auto found = classes.find(of);
  if (found == classes.end()) return;
  for (const auto& [voter, sizes] : found->second) total_ -= CountOf(sizes);
  classes.erase(found);
}

void CostSamples::EraseIfStill(const std::string& profile, const LinkClass& of) {
  const std::string key = KeyOf(profile, of);
  const auto stored = store_.GetRecord(Shelf::kCostSamples, key);
  if (!stored.ok() || !stored->has_value() || read_[key] != Sha256(**stored)) return;
  store_.ReplaceRecord(Shelf::kCostSamples, key, *stored, std::nullopt).IgnoreError();
}

// Takes what makes sense: a record that was written is whole, but by which version?
void CostSamples::Read(const Record& record) {
  read_[record.key] = Sha256(record.value);
  v1::StoredSamples stored;
  bool sound = stored.ParseFromString(record.value) &&
               stored.format_version() == kSampleFormatVersion &&
               CheckProfileName(stored.profile()).ok();
  std::vector<std::shared_ptr<const Provenance>> provenances;
  for (const v1::StoredSamples::Provenance& p : stored.provenances()) {
    provenances.push_back(
        std::make_shared<const Provenance>(Provenance{{p.reporter(), p.job(), p.tool(), p.device()},
                                                      VoterAsOfNow(p.voter()),
                                                      p.received_unix_ms()}));
  }
  for (const v1::StoredSamples::Sample& s : stored.samples()) {
    if (!sound) break;
    v1::CollectiveSample whole = stored.of();
    whole.set_bytes(s.bytes());
    whole.set_picoseconds(s.picoseconds());
    whole.set_launches(s.launches());
    const auto sample = SampleFromProto(whole);
    sound = sample.ok() && s.provenance() < provenances.size();
    if (!sound) break;
    Insert(stored.profile(), sample->of,
           {s.bytes(), s.picoseconds(), sample->launches, s.packed(), provenances[s.provenance()]});
  }
  if (sound) return;
  metrics_.records_unreadable.Increment();
  spdlog::warn("cost samples {} cannot be read: not a record that this version reads", record.key);
}

// False: there is no room.
bool CostSamples::Insert(const std::string& profile, const LinkClass& of, Kept sample) {
  ByClass& classes = held_[profile];
  if (!classes.contains(of) && classes.size() >= limits_.classes) return false;
  const std::string voter = sample.from->voter;
  const int bin = SizeBin(sample.bytes, sample.launches);
  ByVoter& voters = classes[of];
  if (!voters.contains(voter) && voters.size() >= limits_.voters) DropQuietest(voters);
  std::deque<Kept>& newest = voters[voter][bin];
  if (newest.size() >= limits_.each) {
    newest.pop_front();
    --total_;
    metrics_.samples(SampleResult::kReplaced).Increment();
  } else if (total_ >= limits_.total) {
    if (newest.empty()) voters[voter].erase(bin);
    if (voters[voter].empty()) voters.erase(voter);
    if (voters.empty()) classes.erase(of);
    return false;
  }
  newest.push_back(std::move(sample));
  ++total_;
  return true;
}

void CostSamples::DropQuietest(ByVoter& voters) {
  const auto quietest = std::min_element(
      voters.begin(), voters.end(),
      [](const auto& a, const auto& b) { return NewestOf(a.second) < NewestOf(b.second); });
  const int64_t count = CountOf(quietest->second);
  total_ -= count;
  metrics_.samples(SampleResult::kReplaced).Increment(static_cast<double>(count));
  voters.erase(quietest);
}

// O(samples). Of a class that goes on the record follows when it is next written, and is
// read with the same eyes until then.
void CostSamples::Expire() {
  const int64_t oldest = now_ms_() - limits_.max_age_ms;
  const int64_t before = total_;
  for (auto& [profile, classes] : held_) {
    for (auto& [of, voters] : classes) {
      for (auto& [voter, sizes] : voters) {
        for (auto& [bin, samples] : sizes) {
          const size_t count = samples.size();
          std::erase_if(samples, [&](const Kept& kept) { return kept.from->received_ms < oldest; });
          total_ -= static_cast<int64_t>(count - samples.size());
        }
        std::erase_if(sizes, [](const auto& entry) { return entry.second.empty(); });
      }
      std::erase_if(voters, [](const auto& entry) { return entry.second.empty(); });
      if (voters.empty()) EraseIfStill(profile, of);
    }
    std::erase_if(classes, [](const auto& entry) { return entry.second.empty(); });
  }
  metrics_.samples(SampleResult::kExpired).Increment(static_cast<double>(before - total_));
  metrics_.samples_held.Set(static_cast<double>(total_));
}

absl::StatusOr<CostSamples::Taken> CostSamples::Add(const CostReport& report,
                                                    absl::string_view voter, const Actor& actor) {
  const absl::MutexLock lock(&mutex_);
  Expire();
  const auto from =
      std::make_shared<const Provenance>(Provenance{report.by, std::string(voter), now_ms_()});
  std::map<LinkClass, std::vector<Kept>> by_class;
  for (const CollectiveSample& s : report.samples) {
    by_class[s.of].push_back({s.bytes, s.picoseconds, s.launches, s.packed, from});
  }
  Taken taken;
  absl::Status stored;
  for (const auto& [of, samples] : by_class) {
    stored.Update(AddToClass(report.profile, of, samples, actor, taken));
  }
  metrics_.samples(SampleResult::kAccepted).Increment(taken.accepted);
  metrics_.samples(SampleResult::kLimited).Increment(taken.limited);
  metrics_.samples_held.Set(static_cast<double>(total_));
  RETURN_IF_ERROR(stored);
  return taken;
}

// Where another server is faster, its samples come first, and then these once more.
absl::Status CostSamples::AddToClass(const std::string& profile, const LinkClass& of,
                                     const std::vector<Kept>& samples, const Actor& actor,
                                     Taken& taken) {
  const std::string key = KeyOf(profile, of);
  absl::Status written;
  for (int attempt = 0; attempt < kSampleAttempts; ++attempt) {
    const absl::StatusOr<std::optional<std::string>> before = CatchUp(profile, of);
    int32_t accepted = 0;
    for (const Kept& sample : samples) accepted += Insert(profile, of, sample) ? 1 : 0;
    written = before.status();
    if (accepted > 0 && before.ok()) {
      const std::string value = Serialize(profile, of, held_[profile].at(of));
      const AuditLine line{actor,    actor.tenant,
                           "report", absl::StrCat("cost samples ", key),
                           "",       absl::StrCat(accepted, " more")};
      CrashPoint("samples: to be kept");
      written = store_.ReplaceRecord(Shelf::kCostSamples, key, *before, value, &line);
      CrashPoint("samples: kept");
      if (written.ok()) read_[key] = Sha256(value);
    }
    if (absl::IsAborted(written)) continue;
    taken.accepted += accepted;
    taken.limited += static_cast<int32_t>(samples.size()) - accepted;
    break;
  }
  return written.ok() ? written : WithReason(Reason::kStoreUnavailable, written);
}

std::string CostSamples::Serialize(const std::string& profile, const LinkClass& of,
                                   const ByVoter& voters) {
  v1::StoredSamples stored;
  stored.set_format_version(kSampleFormatVersion);
  stored.set_profile(profile);
  CollectiveSample names_the_class;
  names_the_class.of = of;
  SampleToProto(names_the_class, *stored.mutable_of());
  std::map<const Provenance*, uint32_t> index;
  for (const auto& [voter, sizes] : voters) {
    for (const auto& [bin, samples] : sizes) {
      for (const Kept& kept : samples) {
        const auto [at, added] =
            index.emplace(kept.from.get(), static_cast<uint32_t>(index.size()));
        if (added) {
          v1::StoredSamples::Provenance& p = *stored.add_provenances();
          p.set_reporter(kept.from->by.reporter);
          p.set_job(kept.from->by.job);
          p.set_tool(kept.from->by.tool);
          p.set_device(kept.from->by.device);
          p.set_voter(kept.from->voter);
          p.set_received_unix_ms(kept.from->received_ms);
        }
        v1::StoredSamples::Sample& s = *stored.add_samples();
        s.set_provenance(at->second);
        s.set_bytes(kept.bytes);
        s.set_picoseconds(kept.picoseconds);
        s.set_launches(static_cast<uint32_t>(kept.launches));
        s.set_packed(kept.packed);
      }
    }
  }
  return stored.SerializeAsString();
}

std::vector<ClassSamples> CostSamples::Get(absl::string_view profile) {
  const absl::MutexLock lock(&mutex_);
  CatchUp();
  Expire();
  std::vector<ClassSamples> all;
  const auto found = held_.find(profile);
  if (found == held_.end()) return all;
  for (const auto& [of, voters] : found->second) {
    ClassSamples& of_class = all.emplace_back(ClassSamples{of, {}});
    for (const auto& [voter, sizes] : voters) {
      for (const auto& [bin, samples] : sizes) {
        for (const Kept& kept : samples) {
          of_class.samples.push_back({kept.bytes, kept.picoseconds, kept.launches, voter});
        }
      }
    }
  }
  return all;
}

std::vector<HeldClass> CostSamples::List(absl::string_view only) {
  const absl::MutexLock lock(&mutex_);
  CatchUp();
  Expire();
  std::vector<HeldClass> all;
  for (const auto& [profile, classes] : held_) {
    if (!only.empty() && only != profile) continue;
    for (const auto& [of, voters] : classes) {
      HeldClass& held = all.emplace_back(HeldClass{profile, of, 0, 0, 0});
      held.voters = static_cast<int32_t>(voters.size());
      for (const auto& [voter, sizes] : voters) {
        held.samples += static_cast<int32_t>(CountOf(sizes));
        held.newest_unix_ms = std::max(held.newest_unix_ms, NewestOf(sizes));
      }
    }
  }
  return all;
}

}  // namespace bucketd
