// Plans as operators see them: what is in memory and what is in the store, by whole keys.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/digest.h"
#include "passes/base/status_macros.h"
#include "server/admin/admin.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/plans/plan_request.h"

namespace bucketd {
namespace {

constexpr int32_t kAll = 10'000'000;
constexpr size_t kMinHashDigits = 8;
constexpr size_t kHashDigits = 64;

std::string HashOf(absl::string_view key) { return ToHex(Sha256(key)); }

bool IsHashOrItsBeginning(absl::string_view text) {
  return text.size() >= kMinHashDigits && text.size() <= kHashDigits &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

absl::Status Check(const v1::PlanSelection& selection) {
  if (selection.has_tenant()) RETURN_IF_ERROR(CheckTenant(selection.tenant()));
  const std::pair<absl::string_view, const std::string&> hashes[] = {
      {"key_sha256", selection.key_sha256()}, {"graph_digest", selection.graph_digest()}};
  for (const auto& [field, text] : hashes) {
    if (text.empty() || IsHashOrItsBeginning(text)) continue;
    return MakeError(Reason::kRequestMalformed,
                     absl::StrCat(field, ": expected ", kMinHashDigits, " to ", kHashDigits,
                                  " lower-case hex digits, as `bucketctl plans` shows them"));
  }
  if (selection.not_used_since_ms() < 0) {
    return MakeError(Reason::kRequestMalformed, "not_used_since_ms: expected a time after 1970");
  }
  return absl::OkStatus();
}

// Of what this server knows: a field of a later version selects nothing here, and may not stand for
// a selection.
bool IsEmpty(const v1::PlanSelection& selection) {
  return !selection.has_tenant() && selection.key_sha256().empty() &&
         selection.graph_digest().empty() && selection.not_used_since_ms() == 0;
}

// What a key alone can say.
bool Matches(const v1::PlanSelection& selection, absl::string_view key) {
  if (selection.has_tenant() && PlanKeyField(key, "tenant") != selection.tenant()) return false;
  if (!absl::StartsWith(PlanKeyField(key, "graph"), selection.graph_digest())) return false;
  return selection.key_sha256().empty() || absl::StartsWith(HashOf(key), selection.key_sha256());
}

PlanSelection ForStore(const v1::PlanSelection& selection) {
  PlanSelection out;
  if (selection.has_tenant()) out.tenant = selection.tenant();
  if (selection.graph_digest().size() == kHashDigits) out.graph_digest = selection.graph_digest();
  if (selection.not_used_since_ms() > 0) {
    out.not_used_since = WallAt(selection.not_used_since_ms());
  }
  return out;
}

void Describe(absl::string_view key, bool with_key, v1::PlanInfo& plan) {
  plan.set_key_sha256(HashOf(key));
  if (with_key) plan.set_key(std::string(key));
  plan.set_tenant(PlanKeyField(key, "tenant"));
  plan.set_graph_digest(PlanKeyField(key, "graph"));
  plan.set_mode(PlanKeyField(key, "mode"));
  plan.set_cost_profile(PlanKeyField(key, "cost_profile"));
}

// The store knows whole digests of graphs, but neither how they begin nor hashes of keys: of what
// it hands out then, the hash chooses.
bool ChosenByHash(const v1::PlanSelection& selection) {
  const size_t digits = selection.graph_digest().size();
  return !selection.key_sha256().empty() || (digits > 0 && digits < kHashDigits);
}

absl::StatusOr<std::vector<StoredPlan>> InStore(Store& store, const v1::PlanSelection& selection,
                                                int32_t limit) {
  const bool by_hash = ChosenByHash(selection);
  absl::StatusOr<std::vector<StoredPlan>> plans =
      store.ListPlans(ForStore(selection), by_hash ? kAll : limit);
  if (!plans.ok()) return WithReason(Reason::kStoreUnavailable, plans.status());
  if (by_hash) {
    plans->erase(std::remove_if(plans->begin(), plans->end(),
                                [&](const StoredPlan& p) { return !Matches(selection, p.key); }),
                 plans->end());
  }
  return plans;
}

std::string InWords(const v1::PlanSelection& selection) {
  std::vector<std::string> words;
  if (selection.has_tenant()) words.push_back(absl::StrCat("tenant=", selection.tenant()));
  if (!selection.key_sha256().empty())
    words.push_back(absl::StrCat("key=", selection.key_sha256()));
  if (!selection.graph_digest().empty()) {
    words.push_back(absl::StrCat("graph=", selection.graph_digest()));
  }
  if (selection.not_used_since_ms() > 0) {
    words.push_back(absl::StrCat("not used since ", selection.not_used_since_ms(), " ms"));
  }
  return words.empty() ? "all plans" : absl::StrCat("plans of ", absl::StrJoin(words, ", "));
}

// How many went. `stored` is what InStore found.
absl::StatusOr<int64_t> EvictStored(Store& store, const v1::PlanSelection& selection,
                                    const std::vector<StoredPlan>& stored, const Actor& by) {
  const AuditLine line{
      by,      selection.has_tenant() ? selection.tenant() : std::string(kAllTenants),
      "evict", InWords(selection),
      "",      ""};
  PlanSelection chosen = ForStore(selection);
  std::vector<PlanSelection> selections;
  if (!ChosenByHash(selection)) {
    selections.push_back(chosen);
  } else {
    for (const StoredPlan& plan : stored) {
      chosen.key = plan.key;
      selections.push_back(chosen);
    }
  }
  int64_t evicted = 0;
  for (const PlanSelection& one : selections) {
    const absl::StatusOr<int64_t> gone = store.EvictPlans(one, &line);
    if (!gone.ok()) return WithReason(Reason::kStoreUnavailable, gone.status());
    evicted += *gone;
  }
  return evicted;
}

}  // namespace

absl::StatusOr<v1::ListPlansResponse> Admin::ListPlans(const v1::ListPlansRequest& request) const {
  RETURN_IF_ERROR(Check(request.selection()));
  ASSIGN_OR_RETURN(const int32_t limit, ListLimit(request.limit(), 100));
  ASSIGN_OR_RETURN(const std::vector<StoredPlan> stored,
                   InStore(parts_.store, request.selection(), limit + 1));
  absl::flat_hash_set<absl::string_view> stored_keys;
  for (const StoredPlan& plan : stored) stored_keys.insert(plan.key);

  v1::ListPlansResponse response;
  const auto room = [&] {
    if (response.plans_size() < limit) return true;
    response.set_truncated(true);
    return false;
  };
  // First what no store has: it was computed just now, or there is none, or it does not work.
  absl::flat_hash_set<std::string> in_memory;
  for (PlanCache::Entry& entry : parts_.cache.List()) {
    if (!stored_keys.contains(entry.key) && request.selection().not_used_since_ms() == 0 &&
        Matches(request.selection(), entry.key) && stored.size() <= static_cast<size_t>(limit) &&
        room()) {
      v1::PlanInfo& plan = *response.add_plans();
      Describe(entry.key, request.with_keys(), plan);
      plan.set_bytes(entry.bytes);
      plan.set_in_memory(true);
    }
    in_memory.insert(std::move(entry.key));
  }
  for (const StoredPlan& from : stored) {
    if (!room()) break;
    v1::PlanInfo& plan = *response.add_plans();
    Describe(from.key, request.with_keys(), plan);
    plan.set_bytes(from.bytes);
    plan.set_created_ms(MsOf(from.created));
    plan.set_used_ms(MsOf(from.used));
    plan.set_held(from.held);
    plan.set_in_memory(in_memory.contains(from.key));
  }
  return response;
}

absl::StatusOr<v1::EvictPlansResponse> Admin::EvictPlans(const v1::EvictPlansRequest& request,
                                                         const Actor& by) {
  const v1::PlanSelection& selection = request.selection();
  RETURN_IF_ERROR(Check(selection));
  if (IsEmpty(selection) != request.all()) {
    return MakeError(Reason::kRequestMalformed,
                     request.all() ? "all: a selection is given too; say one of the two"
                                   : "selection: it is empty; say `all` if that is meant");
  }
  if (selection.not_used_since_ms() > 0 && parts_.store_path.empty()) {
    return MakeError(
        Reason::kRequestMalformed,
        "not_used_since_ms: only a store on disk knows when a plan was used; see --store-dir");
  }
  v1::EvictPlansResponse response;
  // The store first: else a caller could bring a plan back into memory from it.
  ASSIGN_OR_RETURN(const std::vector<StoredPlan> stored, InStore(parts_.store, selection, kAll));
  ASSIGN_OR_RETURN(const int64_t from_store, EvictStored(parts_.store, selection, stored, by));
  response.set_from_store(from_store);
  response.set_held(std::count_if(stored.begin(), stored.end(),
                                  [](const StoredPlan& plan) { return plan.held; }));
  int64_t from_memory = 0;
  if (selection.not_used_since_ms() > 0) {
    for (const StoredPlan& plan : stored) from_memory += parts_.cache.Evict(plan.key) ? 1 : 0;
  } else {
    for (const PlanCache::Entry& entry : parts_.cache.List()) {
      if (Matches(selection, entry.key)) from_memory += parts_.cache.Evict(entry.key) ? 1 : 0;
    }
  }
  response.set_from_memory(from_memory);
  return response;
}

}  // namespace bucketd
