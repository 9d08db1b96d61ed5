#include "server/jobs/machine/scope_errors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/jobs/machine/job_signature.h"

namespace bucketd {
namespace {

constexpr size_t kNamedGroups = 4;

std::string Short(const Digest& digest) { return ToHex(digest).substr(0, 12); }

std::string Fields(const Presented& a, const Presented& b) {
  std::string fields;
  if (!a.text.empty() && !b.text.empty()) fields = DifferingFields(a.text, b.text);
  if (a.fresh == b.fresh) return fields;
  return absl::StrCat(fields, fields.empty() ? "" : "; ", "fresh is ", a.fresh ? "true" : "false",
                      " against ", b.fresh ? "true" : "false");
}

// A rank that recompiles alone waits for ever for ranks that are running.
std::string WhereTheOthersAre(const Scope& scope, absl::Span<const uint32_t> missing) {
  const std::string came = NameRanks(scope.ranks().Present());
  const std::string only = absl::StrCat("; only ", came, " came; ");
  const std::string hint = absl::StrCat(": did only ", came, " recompile?");
  const bool few = scope.ranks().ranks() * 2 <= scope.size();
  const Job& job = scope.job();
  for (const auto& [name, other] : job.scopes) {
    if (other.get() == &scope || !other->undecided()) continue;
    const bool there =
        std::any_of(missing.begin(), missing.end(),
                    [&there_now = other->ranks()](uint32_t rank) { return there_now.has(rank); });
    if (!there) continue;
    if (few) return absl::StrCat(only, "others wait in scope ", name, hint);
    return absl::StrCat("; missing ranks wait in scope ", name);
  }
  if (job.last_agreed.empty()) return "";
  if (few) return absl::StrCat(only, "the others last presented scope ", job.last_agreed, hint);
  return absl::StrCat("; they last presented scope ", job.last_agreed);
}

}  // namespace

absl::Status DifferError(const Scope& scope, const std::array<size_t, 2>& compared,
                         absl::string_view difference, absl::string_view node) {
  const std::vector<RankGroup> groups = scope.ranks().Groups();
  std::vector<std::string> named;
  bool one_graph = true;
  for (const RankGroup& group : groups) {
    one_graph &= group.presented->graph == groups[0].presented->graph;
    if (named.size() == kNamedGroups) continue;
    named.push_back(
        absl::StrCat(NameRanks(group.ranks), " presented graph ", Short(group.presented->graph)));
  }
  std::string text = absl::StrCat("scope ", scope.name(), ": ", absl::StrJoin(named, ", "));
  if (groups.size() > named.size()) {
    absl::StrAppend(&text, ", and there are ", groups.size() - named.size(), " more groups");
  }
  const std::string fields = Fields(*groups[0].presented, *groups[1].presented);
  if (one_graph) {
    absl::StrAppend(&text, "; the graphs are one, mesh or options are not");
  }
  if (!difference.empty()) {
    const auto graph = [&](size_t i) {
      return Short(scope.ranks().presented()[compared[i]].graph);
    };
    absl::StrAppend(&text, "; graphs ", graph(0), " and ", graph(1), " first differ at ",
                    difference);
  }
  if (!fields.empty()) {
    absl::StrAppend(&text, "; of ", NameRanks(groups[0].ranks), " against ",
                    NameRanks(groups[1].ranks), ": ", fields);
  }
  absl::flat_hash_set<uint32_t> came;
  for (const RankGroup& group : groups) came.insert(group.ranks.begin(), group.ranks.end());
  std::vector<uint32_t> missing = scope.ranks().Missing(scope.size());
  std::erase_if(missing, [&](uint32_t rank) { return came.contains(rank); });
  if (!missing.empty()) absl::StrAppend(&text, "; ", NameRanks(missing), " did not come");
  return MakeError(Reason::kRanksDiffer, text, {.node = std::string(node)});
}

absl::Status DiffersAloneError(const Scope& scope, absl::Span<const uint32_t> ranks,
                               absl::string_view signature) {
  const std::string& agreed = scope.agreed_signature();
  const auto graph = [](absl::string_view text) {
    const size_t at = text.find("\ngraph=\"");
    return std::string(at == absl::string_view::npos ? "?" : text.substr(at + 8, 12));
  };
  std::string text =
      absl::StrCat("scope ", scope.name(), " was agreed on with graph ", graph(agreed), "; later ",
                   NameRanks(ranks), " presented graph ", graph(signature));
  const std::string fields = DifferingFields(signature, agreed);
  if (!fields.empty()) absl::StrAppend(&text, ", where ", fields);
  absl::StrAppend(&text, "; a recompiled graph needs a scope of its own, on all ranks");
  return MakeError(Reason::kRanksDiffer, text);
}

absl::Status MissingError(const Scope& scope) {
  const std::vector<uint32_t> missing = scope.ranks().Missing(scope.size());
  std::string text =
      absl::StrFormat("%s of %d did not present scope %s within %.1f s", NameRanks(missing),
                      scope.size(), scope.name(), scope.seconds());
  for (const Presented& presented : scope.ranks().presented()) {
    std::vector<uint32_t> away;
    for (const uint32_t rank : presented.asked) {
      if (!scope.ranks().has(rank)) away.push_back(rank);
    }
    if (away.empty()) continue;
    absl::StrAppend(&text, "; ", NameRanks(away),
                    " came, was asked for the graph, and has not come back");
  }
  std::vector<uint32_t> no_room(scope.turned_away().begin(), scope.turned_away().end());
  std::erase_if(no_room, [&](uint32_t rank) { return scope.ranks().has(rank); });
  std::sort(no_room.begin(), no_room.end());
  if (!no_room.empty()) {
    absl::StrAppend(&text, "; ", NameRanks(no_room),
                    " came and found no room: too many ranks wait at this server");
  }
  absl::StrAppend(&text, WhereTheOthersAre(scope, missing));
  return MakeError(Reason::kRanksMissing, text,
                   {.limit = scope.size(), .actual = static_cast<int64_t>(scope.ranks().ranks())});
}

absl::Status RefusedError(const Scope& scope, absl::Span<const uint32_t> ranks,
                          const absl::Status& why) {
  absl::Status error(why.code(), absl::StrCat("scope ", scope.name(), ": ", NameRanks(ranks),
                                              " was refused: ", why.message()));
  why.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { error.SetPayload(url, payload); });
  return error;
}

absl::Status AnotherServerWasFirst() {
  return MakeError(Reason::kStoreUnavailable,
                   "another server of this store was first to decide what this generation "
                   "of the "
                   "job runs with, and decided otherwise; ask again to get that");
}

absl::Status AnotherServerMayBeFirst() {
  return MakeError(
      Reason::kStoreUnavailable,
      "this server stood still or ranks left it, and while the store does not answer nobody knows "
      "whether the job has a plan from another server by now; ask again");
}

bool IsLost(const absl::Status& unread) {
  return absl::IsNotFound(unread) || absl::IsDataLoss(unread);
}

absl::Status UnreadPlanError(const absl::Status& unread) {
  if (!IsLost(unread)) {
    return MakeError(Reason::kStoreUnavailable,
                     absl::StrCat("the plan that this generation agreed on cannot be read now; ask "
                                  "again: ",
                                  unread.message()));
  }
  return MakeError(Reason::kGenerationOver,
                   "the plan that this generation agreed on is lost; a new generation of the job "
                   "gets a new one");
}

}  // namespace bucketd
