#include "tests/server/simulation/engine.h"

#include <chrono>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "proto/cluster.pb.h"
#include "proto/pins.pb.h"
#include "server/jobs/pin_index.h"

namespace bucketd::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kGiveUp{1000};  // of a call of an engine that does not answer

absl::Status Gone() { return absl::UnavailableError("the engine does not answer"); }

}  // namespace

// One process's way to it.
class EngineClient final : public Store {
 public:
  EngineClient(Engine& engine, Process& process) : engine_(engine), process_(process) {}

  absl::StatusOr<std::optional<std::string>> GetPlan(absl::string_view key) override {
    return Read("GetPlan", [&] { return inner().GetPlan(key); });
  }
  void NoteUse(absl::string_view key) override { inner().NoteUse(key); }
  absl::Status PutPlan(absl::string_view key, absl::string_view tenant,
                       absl::string_view plan) override {
    return Write("PutPlan", [&] {
      const absl::Status put = inner().PutPlan(key, tenant, plan);
      if (put.ok()) engine_.history_.Saved(std::string(key));
      return put;
    });
  }
  absl::Status HoldPlan(absl::string_view key, absl::string_view holder,
                        WallTime expires) override {
    return Write("HoldPlan", [&] { return inner().HoldPlan(key, holder, expires); });
  }
  absl::Status ReleaseHolds(absl::string_view holder) override {
    return Write("ReleaseHolds", [&] { return inner().ReleaseHolds(holder); });
  }
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                       absl::string_view key) override {
    return Read("GetRecord", [&] { return inner().GetRecord(shelf, key); });
  }
  std::vector<absl::StatusOr<std::optional<std::string>>> GetRecords(
      absl::Span<const RecordName> names) override {
    using All = std::vector<absl::StatusOr<std::optional<std::string>>>;
    absl::StatusOr<All> all =
        Read("GetRecords", [&] { return absl::StatusOr<All>(inner().GetRecords(names)); });
    if (all.ok()) return *std::move(all);
    return All(names.size(), all.status());
  }
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override {
    const char* const call = before != nullptr   ? "ReplaceRecord"
                             : after.has_value() ? "PutRecord"
                                                 : "EraseRecord";
    return Write(call, [&] {
      const absl::Status put = inner().ChangeRecord(shelf, key, before, after, line);
      std::optional<std::string> value;
      if (after.has_value()) value = std::string(*after);
      if (put.ok()) engine_.Wrote(shelf, std::string(key), value);
      return put;
    });
  }
  absl::Status WriteTogether(const Changes& changes) override {
    if (!process_.dead && engine_.see_) engine_.see_(process_, changes);
    return Write("WriteTogether", [&] {
      const absl::Status put = inner().WriteTogether(changes);
      if (!put.ok()) return put;
      for (const RecordChange& change : changes.records) {
        engine_.Wrote(change.record.shelf, change.record.key, change.after);
      }
      return put;
    });
  }
  absl::StatusOr<std::vector<Record>> ListRecords(Shelf shelf, absl::string_view prefix,
                                                  absl::string_view from, int32_t limit) override {
    return Read("ListRecords", [&] { return inner().ListRecords(shelf, prefix, from, limit); });
  }
  absl::StatusOr<std::vector<StoredPlan>> ListPlans(const PlanSelection& selection,
                                                    int32_t limit) override {
    return Read("ListPlans", [&] { return inner().ListPlans(selection, limit); });
  }
  absl::StatusOr<int64_t> EvictPlans(const PlanSelection& selection,
                                     const AuditLine* line) override {
    return Write("EvictPlans", [&] { return inner().EvictPlans(selection, line); });
  }
  absl::StatusOr<int64_t> KeepWithin(absl::string_view tenant, int64_t most) override {
    return Write("KeepWithin", [&] { return inner().KeepWithin(tenant, most); });
  }
  absl::StatusOr<std::map<std::string, int64_t>> PlanBytes() override {
    return Read("PlanBytes", [&] { return inner().PlanBytes(); });
  }
  absl::StatusOr<StoreStats> Stats() override {
    return Read("Stats", [&] { return inner().Stats(); });
  }
  absl::StatusOr<ScanResult> ScanPlans(SeeValue see) override {
    return Read("ScanPlans", [&] { return inner().ScanPlans(see); });
  }
  absl::StatusOr<ScanResult> ScanRecords(SeeValue see) override {
    return Read("ScanRecords", [&] { return inner().ScanRecords(see); });
  }
  absl::StatusOr<std::vector<AuditEntry>> ListAudit(const AuditSelection& selection,
                                                    int32_t limit) override {
    return Read("ListAudit", [&] { return inner().ListAudit(selection, limit); });
  }
  absl::StatusOr<int64_t> AddAudit(absl::Span<const AuditEntry> entries) override {
    return Write("AddAudit", [&] { return inner().AddAudit(entries); });
  }
  // SQLite would not count what came by its own connection, and here all did.
  absl::StatusOr<int64_t> Version() override {
    return Read("Version", [&] { return absl::StatusOr<int64_t>(engine_.version_); });
  }

 private:
  using Moment = Engine::Moment;

  Store& inner() { return *engine_.store_; }

  // Half of the way there, the call, half of the way back.
  template <typename Call>
  std::invoke_result_t<Call> Go(const char* what, bool writes, Call call) {
    Threads& threads = engine_.threads_;
    threads.Asks(what);
    if (Trapped(what, Moment::kBefore)) return Gone();
    threads.Sleep(engine_.Latency() / 2);
    if (process_.dead) return Gone();
    if (engine_.IsAway(process_)) {
      threads.Sleep(kGiveUp);
      return Failed();
    }
    std::invoke_result_t<Call> result = InEngine(call);
    if (writes) ++engine_.version_;
    if (Trapped(what, Moment::kAfter)) return Gone();
    const bool is_lost =
        writes && engine_.lost_outcomes_ > 0 && engine_.random_.Chance(engine_.lost_outcomes_);
    threads.Sleep(engine_.Latency() / 2);
    if (process_.dead) return Gone();
    if (is_lost) return Failed();
    return result;
  }
  template <typename Call>
  std::invoke_result_t<Call> Read(const char* what, Call call) {
    return Go(what, false, call);
  }
  template <typename Call>
  std::invoke_result_t<Call> Write(const char* what, Call call) {
    return Go(what, true, call);
  }
  template <typename Call>
  std::invoke_result_t<Call> InEngine(Call call) {
    const Threads::As as(&engine_.machine_);
    return call();
  }
  bool Trapped(const char* what, Moment moment) {
    if (!process_.dead && engine_.trap_) engine_.trap_(process_, what, moment);
    return process_.dead;
  }
  absl::Status Failed() {
    if (!process_.dead) engine_.history_.StoreFailed(process_);
    return Gone();
  }

  Engine& engine_;
  Process& process_;
};

Engine::Engine(Threads& threads, History& history, uint64_t seed)
    : threads_(threads),
      history_(history),
      random_(seed),
      machine_{.name = "engine", .number = -2},
      store_(*SqliteStore::Open({})) {}

std::unique_ptr<Store> Engine::Connect(Process& process) {
  return std::make_unique<EngineClient>(*this, process);
}

Time Engine::Latency() {
  const Time usual = microseconds(random_.Between(200, 4000));
  return threads_.now() < slow_until_ ? 200 * usual : usual;
}

bool Engine::IsAway(const Process& process) const {
  if (threads_.now() < away_until_) return true;
  const auto found = away_from_.find(process.name);
  return found != away_from_.end() && threads_.now() < found->second;
}

void Engine::Wrote(Shelf shelf, const std::string& key, const std::optional<std::string>& value) {
  if (shelf == Shelf::kReplicas && absl::StartsWith(key, "lease/")) {
    v1::LeaseRecord lease;
    if (value.has_value() && lease.ParseFromString(*value)) {
      history_.Leased(key, lease.holder(), lease.incarnation());
    } else {
      history_.Unleased(key);
    }
  } else if (shelf == Shelf::kPins) {
    v1::PinRecord pin;
    if (!value.has_value()) {
      history_.Unpinned(key);
    } else if (IsPin(key) && pin.ParseFromString(*value)) {
      history_.Pinned(key, pin.generation(), pin.plan_sha256());
    }
  }
}

}  // namespace bucketd::simulation
