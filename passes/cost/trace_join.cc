#include "passes/cost/trace_join.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/cost/cost_report.h"

namespace bucketd {
namespace {

// How many ranks a text lists before it becomes "0,1,...,1023 (1024 ranks)".
constexpr size_t kListed = 16;

std::string RankList(const std::vector<int32_t>& ranks) {
  if (ranks.size() <= kListed) return absl::StrJoin(ranks, ",");
  return absl::StrCat(ranks[0], ",", ranks[1], ",...,", ranks.back(), " (", ranks.size(),
                      " ranks)");
}

// How far clocks may be apart: what a GPU's time stamps are off the host's, and hosts that keep
// time. A job that ran twice numbers its collectives from the same start.
constexpr int64_t kGpuClocksNs = 100'000;
constexpr int64_t kHostClocksNs = 10'000'000'000;

// Names are the trace's, and may be anything.
std::string Printable(const std::string& name) { return absl::CHexEscape(name.substr(0, 40)); }

// A collective, and on whose trace it is.
struct Seen {
  const RankTrace* trace = nullptr;
  const TracedCollective* collective = nullptr;
};
// The same one on several ranks, ascending.
using Row = absl::Span<const Seen>;

struct Communicator {
  std::string mesh_dim;
  bool sequenced = true;
  std::vector<const RankTrace*> members;  // those with a trace, ascending by rank
  std::vector<Seen> seen;
};

// Groups of equal ranks are several communicators if their names differ.
using Key = std::tuple<std::vector<int32_t>, std::string>;

bool Same(const TracedCollective& a, const TracedCollective& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.launches == b.launches && a.bytes == b.bytes;
}

struct Times {
  int64_t last_begin = std::numeric_limits<int64_t>::min();
  int64_t last_end = std::numeric_limits<int64_t>::min();
  int64_t first_end = std::numeric_limits<int64_t>::max();
  // How long before the last rank began the first had ended: nobody leaves what others have yet to
  // join.
  int64_t gap() const { return last_begin - first_end; }
};

Times TimesOf(Row row) {
  Times times;
  for (const Seen& seen : row) {
    const int64_t begin = seen.collective->start_ns;
    const int64_t end = begin + seen.collective->picoseconds / 1000;
    times.last_begin = std::max(times.last_begin, begin);
    times.last_end = std::max(times.last_end, end);
    times.first_end = std::min(times.first_end, end);
  }
  return times;
}

// Of the rows of equal sequence numbers. REQUIRES: `seen` ascends by them.
std::vector<Row> RowsOf(absl::Span<const Seen> seen) {
  std::vector<Row> rows;
  for (size_t begin = 0, end = 0; begin < seen.size(); begin = end) {
    const int64_t sequence = seen[begin].collective->sequence;
    while (end < seen.size() && seen[end].collective->sequence == sequence) ++end;
    rows.push_back(seen.subspan(begin, end - begin));
  }
  return rows;
}

class Joiner {
 public:
  Joiner(const Key& key, const Communicator& of, const JoinOptions& options, bool ambiguous,
         TraceJoin& join)
      : ranks_(std::get<0>(key)), of_(of), options_(options), join_(join) {
    name_ = absl::StrCat(
        RankList(ranks_),
        ambiguous ? absl::StrCat(" of group ", Printable(std::get<1>(key))) : std::string());
    for (const RankTrace* member : of_.members) hosts_.insert(member->host);
  }

  void Run() {
    if (of_.seen.empty()) return;
    const std::vector<Row> rows = RowsOf(of_.seen);
    if (of_.members.size() < ranks_.size() && !options_.partial) {
      return Drop(rows.size(), absl::StrCat("only ", of_.members.size(), " of its ", ranks_.size(),
                                            " ranks have a trace (--partial takes them)"));
    }
    in_node_ = InNode();
    if (in_node_ == 0) {
      return Drop(rows.size(),
                  "the traces do not say how its ranks lie on nodes (--ranks-per-node does)");
    }
    if (!of_.sequenced) {
      const std::string why = CannotAlign(rows);
      if (!why.empty()) return Drop(rows.size(), absl::StrCat("no sequence numbers, and ", why));
    }
    for (const Row row : rows) Take(row);
  }

 private:
  void Drop(size_t count, const std::string& why) {
    join_.dropped[absl::StrCat("ranks ", name_, ": ", why)] += static_cast<int64_t>(count);
  }

  bool OneHost() const { return hosts_.size() == 1 && !hosts_.begin()->empty(); }

  // Of this communicator's ranks on the node that has most; 0 if unknown.
  int32_t InNode() const {
    std::map<std::string, int32_t> count;
    if (options_.ranks_per_node > 0) {
      for (const int32_t rank : ranks_) ++count[absl::StrCat(rank / options_.ranks_per_node)];
    } else {
      if (of_.members.size() < ranks_.size() || hosts_.count("") > 0) return 0;
      for (const RankTrace* member : of_.members) ++count[member->host];
    }
    int32_t most = 0;
    for (const auto& [node, ranks] : count) most = std::max(most, ranks);
    return most;
  }

  // Why positions cannot be compared, or "".
  std::string CannotAlign(const std::vector<Row>& rows) const {
    if (!OneHost()) return "clocks of several hosts";
    for (const Row row : rows) {
      const Seen& first = row.front();
      const std::string at = absl::StrCat("at position ", first.collective->sequence);
      if (row.size() != of_.members.size()) return absl::StrCat(at, " a rank shows nothing more");
      for (const Seen& seen : row) {
        if (Same(*seen.collective, *first.collective)) continue;
        return absl::StrCat(at, " rank ", seen.trace->rank, " shows another collective than rank ",
                            first.trace->rank);
      }
      if (TraitsOf(first.collective->kind).waits_for_all && TimesOf(row).gap() > 0) {
        return absl::StrCat(at, " a rank ends before another begins");
      }
    }
    return "";
  }

  // Why the row is no observation, or "".
  std::string WrongWith(Row row) const {
    const TracedCollective& first = *row.front().collective;
    for (size_t i = 1; i < row.size(); ++i) {
      // Which of them the other ranks show cannot be told.
      if (row[i].trace == row[i - 1].trace) return "several kernels of one number on one rank";
    }
    if (row.size() < of_.members.size()) return "a rank's trace lacks what others show";
    for (const Seen& seen : row) {
      if (!Same(*seen.collective, first)) return "ranks show different kinds, dtypes or sizes";
    }
    if (first.kind == CollectiveKind::kUnspecified) return "no collective that plans price";
    if (!TraitsOf(first.kind).waits_for_all) {
      return absl::StrCat(Name(first.kind), "s: no rank's span is the wire's time");
    }
    if (TimesOf(row).gap() > (OneHost() ? kGpuClocksNs : kHostClocksNs)) {
      return "a rank ends before another begins: not of one run";
    }
    return "";
  }

  void Take(Row row) {
    const std::string wrong = WrongWith(row);
    if (!wrong.empty()) return Drop(1, wrong);
    const TracedCollective& first = *row.front().collective;
    JoinedCollective joined;
    joined.communicator = name_;
    joined.host = of_.members.front()->host;
    joined.mesh_dim = of_.mesh_dim;
    joined.of = {first.kind, LinkOf(of_.mesh_dim), static_cast<int32_t>(ranks_.size()), in_node_,
                 first.dtype};
    joined.sequence = first.sequence;
    joined.launches = first.launches;
    joined.bytes = first.bytes;
    joined.ranks = static_cast<int32_t>(row.size());
    joined.picoseconds = first.picoseconds;
    for (const Seen& seen : row) {
      joined.picoseconds = std::min(joined.picoseconds, seen.collective->picoseconds);
      joined.longest_ps = std::max(joined.longest_ps, seen.collective->picoseconds);
    }
    const Times times = TimesOf(row);
    if (OneHost() && times.gap() <= 0) {
      joined.from_last_ps = (times.last_end - times.last_begin) * 1000;
    }
    const absl::Status valid = Validate(
        CollectiveSample{joined.of, "", joined.launches, false, joined.bytes, joined.picoseconds});
    if (!valid.ok()) return Drop(1, std::string(valid.message()));
    join_.observations.push_back(std::move(joined));
  }

  std::string LinkOf(const std::string& mesh_dim) const {
    auto link = options_.link_classes.find(mesh_dim);
    if (link == options_.link_classes.end()) link = options_.link_classes.find("");
    return link == options_.link_classes.end() ? "" : link->second;
  }

  const std::vector<int32_t>& ranks_;
  const Communicator& of_;
  const JoinOptions& options_;
  TraceJoin& join_;
  std::string name_;
  std::set<std::string> hosts_;
  int32_t in_node_ = 0;
};

absl::Status AddTrace(const RankTrace& trace, std::map<Key, Communicator>& communicators) {
  std::vector<Communicator*> of_group;
  for (const TracedGroup& group : trace.groups) {
    if (std::find(group.ranks.begin(), group.ranks.end(), trace.rank) == group.ranks.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(trace.source, ": group \"", Printable(group.name),
                       "\" is without the trace's own rank ", trace.rank));
    }
    Communicator& of = communicators[Key{group.ranks, group.name}];
    if (of.mesh_dim.empty()) of.mesh_dim = group.mesh_dim;
    of.sequenced = of.sequenced && group.sequenced;
    if (of.members.empty() || of.members.back() != &trace) of.members.push_back(&trace);
    of_group.push_back(&of);
  }
  for (const TracedCollective& c : trace.collectives) {
    of_group[Index(c.group)]->seen.push_back({&trace, &c});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TraceJoin> JoinTraces(absl::Span<const RankTrace> traces,
                                     const JoinOptions& options) {
  std::map<int32_t, const RankTrace*> by_rank;
  for (const RankTrace& trace : traces) {
    const auto [at, is_new] = by_rank.emplace(trace.rank, &trace);
    if (is_new) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", trace.rank, " has two traces: ", at->second->source, " and ",
                     trace.source, "; expected those of one profiled window"));
  }
  TraceJoin join;
  std::map<Key, Communicator> communicators;
  std::map<std::vector<int32_t>, int> names;
  for (const auto& [rank, trace] : by_rank) {
    for (const auto& [why, count] : trace->skipped) join.dropped[why] += count;
    RETURN_IF_ERROR(AddTrace(*trace, communicators));
  }
  for (auto& [key, of] : communicators) {
    ++names[std::get<0>(key)];
    std::stable_sort(of.seen.begin(), of.seen.end(), [](const Seen& a, const Seen& b) {
      return a.collective->sequence < b.collective->sequence;
    });
  }
  for (const auto& [key, of] : communicators) {
    Joiner(key, of, options, names[std::get<0>(key)] > 1, join).Run();
  }
  return join;
}

}  // namespace bucketd
