// Profiler traces of several ranks to observations: one collective of one communicator is one
// observation, however many ranks saw it.
//
// A rank's span of a collective begins when that rank arrives, so all but the last to arrive show
// waiting too, and a kernel that spins for its peers looks like one that moves bytes. The shortest
// span over the ranks is the one that waited least: it is what is taken. Where all traces are of
// one host, and so of one clock, the time from the last arrival to the last departure is known as
// well. It bounds the wire time from above, as the shortest span does from below (a rank that comes
// late may find bytes in its buffers that peers sent long ago): the two together say how far the
// observation can be trusted. Clocks of several hosts give no durations.
//
// What is joined must be the same collective for sure:
//   - by the communicator's own sequence number where the traces have one; numbers begin anew in
//     every run, so spans that lie further apart than clocks can be are of two runs;
//   - else by position, only if every rank shows the same sequence from beginning to end, on one
//     host, and no span ends before all ranks have begun theirs, which no all-gather,
//     reduce-scatter, all-reduce or all-to-all can.
// Everything else is dropped, counted and named.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/cost/measured_link.h"

namespace bucketd {

// One collective as one rank shows it.
struct TracedCollective {
  int32_t group = 0;      // index into RankTrace::groups
  int64_t sequence = -1;  // the communicator's own; unsequenced groups: position in the trace
  CollectiveKind kind = CollectiveKind::kUnspecified;  // kUnspecified, e.g. a barrier: no sample
  DType dtype = DType::kUnspecified;
  int32_t launches = 1;  // collectives in one grouped launch
  int64_t bytes = 0;     // full message, as Collective::bytes; of all members
  int64_t start_ns = 0;  // by the host's clock
  int64_t picoseconds = 0;
};

struct TracedGroup {
  std::string name;            // the same on every member
  std::string mesh_dim;        // "" if unknown
  std::vector<int32_t> ranks;  // global
  bool sequenced = false;
};

struct RankTrace {
  std::string source;  // file
  int32_t rank = 0;    // global
  std::string host;    // "" if unknown
  std::vector<TracedGroup> groups;
  std::vector<TracedCollective> collectives;
  std::map<std::string, int64_t> skipped;  // what the reader could not use: why, and how often
};

struct JoinOptions {
  // Also what not all ranks of a communicator have a trace for: an upper bound, since the one that
  // came last may be among those without.
  bool partial = false;
  int32_t ranks_per_node = 0;  // rank r is on node r / this; 0: by the traces' hosts
  // Mesh dimension to link class; "" for those that are not named here.
  std::map<std::string, std::string> link_classes;
};

struct JoinedCollective {
  std::string communicator;  // "0,1,2,3", with the group's name where that is needed
  std::string host;          // of its lowest rank with a trace
  std::string mesh_dim;
  LinkClass of;
  int64_t sequence = 0;
  int32_t launches = 1;
  int64_t bytes = 0;
  int64_t picoseconds = 0;  // shortest over ranks
  int64_t longest_ps = 0;
  int64_t from_last_ps = 0;  // last arrival to last departure; 0: clocks do not tell
  int32_t ranks = 0;         // that showed it
};

struct TraceJoin {
  std::vector<JoinedCollective> observations;  // by communicator, then sequence
  std::map<std::string, int64_t> dropped;      // why, and how many collectives
};

// INVALID_ARGUMENT: two traces of one rank; a group that its own rank is not in. O(n log n) in
// collectives.
absl::StatusOr<TraceJoin> JoinTraces(absl::Span<const RankTrace> traces,
                                     const JoinOptions& options);

}  // namespace bucketd
