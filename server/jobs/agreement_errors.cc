// Agreement: what ranks are told that cannot have a plan.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/jobs/agreement.h"
#include "server/jobs/job_signature.h"

namespace bucketd {
namespace {

constexpr size_t kNamedGroups = 4;

double SecondsSince(SteadyTime since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

std::string Short(const Digest& digest) { return ToHex(digest).substr(0, 12); }

// Ranks by what they present.
struct RankGroup {
  const Presented* presented;
  std::vector<uint32_t> ranks;  // ascending
};

// Those who were asked for the graph that is compared count, though they are away with it. The
// smallest group first: it is the odd one out. O(ranks log ranks).
std::vector<RankGroup> GroupsOf(const ScopeState& scope,
                                const absl::flat_hash_map<uint64_t, WaitingCall>& calls) {
  std::vector<std::pair<size_t, uint32_t>> by_signature;
  for (const auto& [rank, call] : scope.live) {
    by_signature.emplace_back(calls.find(call)->second.signature, rank);
  }
  for (const Presented& presented : scope.presented) {
    for (const uint32_t rank : presented.asked) {
      if (!scope.live.contains(rank)) by_signature.emplace_back(presented.index, rank);
    }
  }
  std::sort(by_signature.begin(), by_signature.end());
  std::vector<RankGroup> groups;
  for (const auto& [index, rank] : by_signature) {
    const Presented* presented = &scope.presented[index];
    if (groups.empty() || groups.back().presented != presented) groups.push_back({presented, {}});
    groups.back().ranks.push_back(rank);
  }
  std::sort(groups.begin(), groups.end(), [](const RankGroup& a, const RankGroup& b) {
    return std::make_pair(a.ranks.size(), a.ranks[0]) < std::make_pair(b.ranks.size(), b.ranks[0]);
  });
  return groups;
}

std::vector<uint32_t> MissingOf(const ScopeState& scope) {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < scope.size; ++rank) {
    if (!scope.live.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

std::vector<uint32_t> PresentOf(const ScopeState& scope) {
  std::vector<uint32_t> present;
  for (const auto& [rank, call] : scope.live) present.push_back(rank);
  std::sort(present.begin(), present.end());
  return present;
}

std::string Fields(const Presented& a, const Presented& b) {
  std::string fields;
  if (!a.text.empty() && !b.text.empty()) fields = DifferingFields(a.text, b.text);
  if (a.fresh == b.fresh) return fields;
  return absl::StrCat(fields, fields.empty() ? "" : "; ", "fresh is ", a.fresh ? "true" : "false",
                      " against ", b.fresh ? "true" : "false");
}

}  // namespace

absl::Status Agreement::DifferError(const ScopeState& scope, absl::string_view difference,
                                    absl::string_view node) const {
  const std::vector<RankGroup> groups = GroupsOf(scope, calls_);
  std::vector<std::string> named;
  bool one_graph = true;
  for (const RankGroup& group : groups) {
    one_graph &= group.presented->graph == groups[0].presented->graph;
    if (named.size() == kNamedGroups) continue;
    named.push_back(
        absl::StrCat(NameRanks(group.ranks), " presented graph ", Short(group.presented->graph)));
  }
  std::string text = absl::StrCat("scope ", scope.name, ": ", absl::StrJoin(named, ", "));
  if (groups.size() > named.size()) {
    absl::StrAppend(&text, ", and there are ", groups.size() - named.size(), " more groups");
  }
  const std::string fields = Fields(*groups[0].presented, *groups[1].presented);
  if (one_graph) {
    absl::StrAppend(&text, "; the graphs are one, mesh or options are not");
  }
  if (!difference.empty()) {
    const auto graph = [&](size_t i) { return Short(scope.presented[scope.compared[i]].graph); };
    absl::StrAppend(&text, "; graphs ", graph(0), " and ", graph(1), " first differ at ",
                    difference);
  }
  if (!fields.empty()) {
    absl::StrAppend(&text, "; of ", NameRanks(groups[0].ranks), " against ",
                    NameRanks(groups[1].ranks), ": ", fields);
  }
  absl::flat_hash_set<uint32_t> came;
  for (const RankGroup& group : groups) came.insert(group.ranks.begin(), group.ranks.end());
  std::vector<uint32_t> missing = MissingOf(scope);
  std::erase_if(missing, [&](uint32_t rank) { return came.contains(rank); });
  if (!missing.empty()) absl::StrAppend(&text, "; ", NameRanks(missing), " did not come");
  return MakeError(Reason::kRanksDiffer, text,
                   {.limit = -1, .actual = -1, .node = std::string(node)});
}

absl::Status Agreement::DiffersAloneError(const ScopeState& scope, absl::Span<const uint32_t> ranks,
                                          absl::string_view signature) const {
  const std::string& agreed = scope.agreed_signature;
  const auto graph = [](absl::string_view text) {
    const size_t at = text.find("\ngraph=\"");
    return std::string(at == absl::string_view::npos ? "?" : text.substr(at + 8, 12));
  };
  std::string text =
      absl::StrCat("scope ", scope.name, " was agreed on with graph ", graph(agreed), "; later ",
                   NameRanks(ranks), " presented graph ", graph(signature));
  const std::string fields = DifferingFields(signature, agreed);
  if (!fields.empty()) absl::StrAppend(&text, ", where ", fields);
  absl::StrAppend(&text, "; a recompiled graph needs a scope of its own, on all ranks");
  return MakeError(Reason::kRanksDiffer, text);
}

absl::Status Agreement::MissingError(const ScopeState& scope) const {
  const std::vector<uint32_t> missing = MissingOf(scope);
  std::string text =
      absl::StrFormat("%s of %d did not present scope %s within %.1f s", NameRanks(missing),
                      scope.size, scope.name, SecondsSince(scope.since));
  for (const Presented& presented : scope.presented) {
    std::vector<uint32_t> away;
    for (const uint32_t rank : presented.asked) {
      if (!scope.live.contains(rank)) away.push_back(rank);
    }
    if (away.empty()) continue;
    absl::StrAppend(&text, "; ", NameRanks(away),
                    " came, was asked for the graph, and has not come back");
  }
  std::vector<uint32_t> no_room(scope.turned_away.begin(), scope.turned_away.end());
  std::erase_if(no_room, [&](uint32_t rank) { return scope.live.contains(rank); });
  std::sort(no_room.begin(), no_room.end());
  if (!no_room.empty()) {
    absl::StrAppend(&text, "; ", NameRanks(no_room),
                    " came and found no room: too many ranks wait at this server");
  }
  absl::StrAppend(&text, WhereTheOthersAre(scope, missing));
  return MakeError(
      Reason::kRanksMissing, text,
      {.limit = scope.size, .actual = static_cast<int64_t>(scope.live.size()), .node = {}});
}

absl::Status Agreement::RefusedError(const ScopeState& scope, absl::Span<const uint32_t> ranks,
                                     const absl::Status& why) {
  absl::Status error(why.code(), absl::StrCat("scope ", scope.name, ": ", NameRanks(ranks),
                                              " was refused: ", why.message()));
  why.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { error.SetPayload(url, payload); });
  return error;
}

absl::Status Agreement::LostProfileError(const JobState& job, absl::string_view asked,
                                         absl::string_view id, const absl::Status& why) {
  const Reason reason =
      absl::IsUnavailable(why) ? Reason::kStoreUnavailable : Reason::kProfileUnreadable;
  return MakeError(
      reason, absl::StrCat("job \"", job.name.second, "\" runs its generation ", job.generation,
                           " with cost_profile \"", asked, "\" as ", id,
                           ", and that version cannot be had: ", why.message(),
                           "; no other one takes its place within a generation: begin a new one, "
                           "which resolves the name anew, or ask for a version by its number"));
}

// A rank that recompiles alone waits for ever for ranks that are running.
std::string Agreement::WhereTheOthersAre(const ScopeState& scope,
                                         absl::Span<const uint32_t> missing) const {
  const std::string came = NameRanks(PresentOf(scope));
  const std::string only = absl::StrCat("; only ", came, " came; ");
  const std::string hint = absl::StrCat(": did only ", came, " recompile?");
  const bool few = scope.live.size() * 2 <= scope.size;
  const JobState& job = *scope.job;
  for (const auto& [name, other] : job.scopes) {
    if (other.get() == &scope || other->stage > ScopeStage::kComparing) continue;
    const bool there =
        std::any_of(missing.begin(), missing.end(),
                    [&live = other->live](uint32_t rank) { return live.contains(rank); });
    if (!there) continue;
    if (few) return absl::StrCat(only, "others wait in scope ", name, hint);
    return absl::StrCat("; missing ranks wait in scope ", name);
  }
  if (job.last_agreed.empty()) return "";
  if (few) return absl::StrCat(only, "the others last presented scope ", job.last_agreed, hint);
  return absl::StrCat("; they last presented scope ", job.last_agreed);
}

}  // namespace bucketd
