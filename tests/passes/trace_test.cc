// Profiler traces: what is read of them, and how the ranks' views of one collective become one
// observation. The traces of gloo are real (tests/data/traces), those of NCCL are generated here.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "passes/cost/trace_join.h"
#include "passes/io/torch_trace.h"
#include "tests/passes/test_data.h"

namespace bucketd {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// One kernel of one rank, as Kineto writes it.
json Kernel(double start_us, double dur_us, int64_t seq, const std::string& collective, int64_t in,
            int64_t out, int group_size, const std::string& group = "0") {
  static int64_t external_id = 0;
  ++external_id;
  return {{"ph", "X"},
          {"cat", "kernel"},
          {"name", "ncclDevKernel_Something_RING_LL(ncclDevKernelArgsStorage<4096ul>)"},
          {"pid", 0},
          {"tid", 7},
          {"ts", start_us},
          {"dur", dur_us},
          {"args",
           {{"External id", external_id},
            {"Collective name", collective},
            {"In msg nelems", in},
            {"Out msg nelems", out},
            {"Group size", group_size},
            {"dtype", "BFloat16"},
            {"In split size", "[]"},
            {"Out split size", "[]"},
            {"Process Group Name", group},
            {"Process Group Description", "mesh_dp"},
            {"Seq", seq}}}};
}

json Gather(double start_us, double dur_us, int64_t seq, int64_t shard = 1024, int ranks = 2) {
  return Kernel(start_us, dur_us, seq, "_allgather_base", shard, shard * ranks, ranks);
}

json Document(int rank, std::vector<json> events, const std::string& host = "a",
              const json& ranks = {0, 1}) {
  json document = {
      {"schemaVersion", 1},
      {"host_name", host},
      {"distributedInfo",
       {{"backend", "nccl"},
        {"rank", rank},
        {"pg_config", {{{"pg_name", "0"}, {"pg_desc", "mesh_dp"}, {"ranks", ranks}}}}}},
      {"baseTimeNanoseconds", 1700000000000000000}};
  document["traceEvents"] = json::array();
  document["traceEvents"].push_back(
      {{"ph", "M"}, {"name", "process_name"}, {"ts", 0}, {"pid", 1}, {"args", {{"name", "x"}}}});
  for (json& event : events) document["traceEvents"].push_back(std::move(event));
  return document;
}

RankTrace Read(const json& document, const std::string& source = "trace") {
  auto trace = ReadTorchTrace(document.dump(), source);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace.ok() ? *std::move(trace) : RankTrace();
}

TraceJoin Join(const std::vector<json>& documents, const JoinOptions& options = {}) {
  std::vector<RankTrace> traces;
  for (const json& document : documents) traces.push_back(Read(document));
  auto join = JoinTraces(traces, options);
  EXPECT_TRUE(join.ok()) << join.status();
  return join.ok() ? *std::move(join) : TraceJoin();
}

std::vector<RankTrace> RealTraces() {
  std::vector<RankTrace> traces;
  for (const std::string& path : testing::TestDataFiles("traces", ".json.gz")) {
    auto trace = ReadTorchTraceFile(path);
    EXPECT_TRUE(trace.ok()) << trace.status();
    if (trace.ok()) traces.push_back(*std::move(trace));
  }
  return traces;
}

TEST(Trace, RealTracesOfFourRanksBecomeTheObservationsWorkedOutApart) {
  const auto join = JoinTraces(RealTraces(), {});
  ASSERT_TRUE(join.ok()) << join.status();
  std::string text;
  for (const JoinedCollective& c : join->observations) {
    EXPECT_EQ(c.ranks, 4);
    EXPECT_EQ(c.communicator, "0,1,2,3");
    EXPECT_EQ(c.of.group_size, 4);
    EXPECT_EQ(c.of.ranks_per_node, 4);
    EXPECT_GE(c.from_last_ps, c.picoseconds);
    EXPECT_LE(c.picoseconds, c.longest_ps);
    absl::StrAppend(&text, c.sequence, " ", Name(c.of.kind), " ", Name(c.of.dtype), " ", c.launches,
                    " ", c.bytes, " ", c.picoseconds, " ", c.longest_ps, "\n");
  }
  EXPECT_EQ(text, testing::ReadFile(testing::TestDataPath("traces/gloo.joined.txt")));
  EXPECT_THAT(join->dropped,
              ElementsAre(Pair(HasSubstr("broadcasts"), 2), Pair(HasSubstr("plans price"), 2)));
}

TEST(Trace, RealTracesWithOneSpanLessOnOneRankAreNotAligned) {
  std::vector<RankTrace> traces = RealTraces();
  ASSERT_THAT(traces, SizeIs(4));
  std::vector<TracedCollective>& two = traces[2].collectives;
  two.erase(two.begin());
  for (size_t i = 0; i < two.size(); ++i) two[i].sequence = static_cast<int64_t>(i);
  const auto join = JoinTraces(traces, {});
  ASSERT_TRUE(join.ok()) << join.status();
  EXPECT_THAT(join->observations, IsEmpty());
  EXPECT_THAT(join->dropped,
              ElementsAre(Pair(HasSubstr("at position 0 rank 2 shows another collective"), 56)));
}

TEST(Trace, AnObservationTakesAsLongAsTheRankThatCameLast) {
  const TraceJoin join =
      Join({Document(0, {Gather(100, 50, 1)}), Document(1, {Gather(130, 21, 1)})});
  ASSERT_THAT(join.observations, SizeIs(1));
  const JoinedCollective& c = join.observations[0];
  EXPECT_EQ(c.of.kind, CollectiveKind::kAllGather);
  EXPECT_EQ(c.of.dtype, DType::kBF16);
  EXPECT_EQ(c.bytes, 4096);
  EXPECT_EQ(c.picoseconds, 21'000'000);
  EXPECT_EQ(c.longest_ps, 50'000'000);
  EXPECT_EQ(c.from_last_ps, 21'000'000);
  EXPECT_EQ(c.mesh_dim, "dp");
  EXPECT_EQ(c.host, "a");
}

TEST(Trace, EveryKindStatesItsFullMessage) {
  std::vector<json> events = {Kernel(0, 9, 1, "all_gather_into_tensor", 10, 20, 2),
                              Kernel(10, 9, 2, "_reduce_scatter_base", 20, 10, 2),
                              Kernel(20, 9, 3, "allreduce", 20, 20, 2),
                              Kernel(30, 9, 4, "all_to_all", 20, 20, 2),
                              Kernel(40, 9, 5, "barrier", 1, 1, 2),
                              Kernel(50, 9, 6, "reduce", 20, 20, 2)};
  const TraceJoin join = Join({Document(0, events), Document(1, events)});
  std::vector<CollectiveKind> kinds;
  for (const JoinedCollective& c : join.observations) {
    EXPECT_EQ(c.bytes, 40);
    kinds.push_back(c.of.kind);
  }
  EXPECT_THAT(kinds, ElementsAre(CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                 CollectiveKind::kAllReduce, CollectiveKind::kAllToAll));
  EXPECT_THAT(join.dropped,
              ElementsAre(Pair(HasSubstr("barrier"), 2), Pair(HasSubstr("reduce"), 2)));
}

TEST(Trace, SequenceNumbersAlignTracesThatBeginAtDifferentCollectives) {
  const TraceJoin join =
      Join({Document(0, {Gather(0, 9, 1), Gather(10, 8, 2), Gather(20, 7, 3)}),
            Document(1, {Gather(10, 30, 2), Gather(50, 40, 3), Gather(100, 50, 4)}, "b")});
  ASSERT_THAT(join.observations, SizeIs(2));
  EXPECT_EQ(join.observations[0].sequence, 2);
  EXPECT_EQ(join.observations[0].picoseconds, 8'000'000);
  EXPECT_EQ(join.observations[1].picoseconds, 7'000'000);
  EXPECT_EQ(join.observations[1].from_last_ps, 0);  // the clocks of two hosts
  EXPECT_EQ(join.observations[1].of.ranks_per_node, 1);
  EXPECT_THAT(join.dropped, ElementsAre(Pair(HasSubstr("lacks what others show"), 2)));
}

TEST(Trace, AnotherSizeOrKindUnderOneNumberDropsThatOneOnly) {
  const TraceJoin join = Join({Document(0, {Gather(0, 9, 1), Gather(10, 9, 2), Gather(20, 9, 3)}),
                               Document(1, {Gather(0, 9, 1), Gather(10, 9, 2, 512),
                                            Kernel(20, 9, 3, "allreduce", 2048, 2048, 2)})});
  ASSERT_THAT(join.observations, SizeIs(1));
  EXPECT_EQ(join.observations[0].sequence, 1);
  EXPECT_THAT(join.dropped, ElementsAre(Pair(HasSubstr("different kinds, dtypes or sizes"), 2)));
}

TEST(Trace, SeveralKernelsOfOneNumberAreNoObservation) {
  const TraceJoin join =
      Join({Document(0, {Gather(0, 9, 1), Gather(10, 9, 1)}), Document(1, {Gather(0, 9, 1)})});
  EXPECT_THAT(join.observations, IsEmpty());
  EXPECT_THAT(join.dropped, ElementsAre(Pair(HasSubstr("several kernels of one number"), 1)));
}

TEST(Trace, SpansFurtherApartThanClocksAreOfTwoRuns) {
  const auto apart = [](double gap_us, const std::string& host) {
    return Join({Document(0, {Gather(0, 9, 1)}), Document(1, {Gather(9 + gap_us, 8, 1)}, host)});
  };
  ASSERT_THAT(apart(0, "a").observations, SizeIs(1));
  EXPECT_EQ(apart(0, "a").observations[0].from_last_ps, 8'000'000);
  ASSERT_THAT(apart(100, "a").observations, SizeIs(1));
  EXPECT_EQ(apart(100, "a").observations[0].from_last_ps, 0);  // such clocks give no durations
  EXPECT_THAT(apart(101, "a").dropped, ElementsAre(Pair(HasSubstr("not of one run"), 1)));
  EXPECT_THAT(apart(1e7, "b").observations, SizeIs(1));
  EXPECT_THAT(apart(1.1e7, "b").dropped, ElementsAre(Pair(HasSubstr("not of one run"), 1)));
}

TEST(Trace, StartsCountFromTheBaseThatEachProcessStates) {
  json first = Document(0, {Gather(5'000'000, 9, 1)}), second = Document(1, {Gather(0, 8, 1)});
  second["baseTimeNanoseconds"] = first["baseTimeNanoseconds"].get<int64_t>() + 5'000'000'000;
  EXPECT_THAT(Join({first, second}).observations, SizeIs(1));
  second["baseTimeNanoseconds"] = -1;
  EXPECT_FALSE(ReadTorchTrace(second.dump(), "r1").ok());
}

TEST(Trace, KernelsWithoutArgumentsAreExplainedByTheirExternalId) {
  const auto with_call = [](int rank) {
    json call = Gather(0, 3, 1);
    json kernel = call;
    call["cat"] = "cpu_op";
    call["name"] = "record_param_comms";
    kernel["args"] = {{"External id", call["args"]["External id"]}};
    kernel["ts"] = 5;
    kernel["dur"] = 40 - rank;
    json stranger = kernel;
    stranger["args"] = {{"External id", 1 << 30}};
    return Document(rank, {kernel, call, stranger});
  };
  const TraceJoin join = Join({with_call(0), with_call(1)});
  ASSERT_THAT(join.observations, SizeIs(1));
  EXPECT_EQ(join.observations[0].picoseconds, 39'000'000);
  EXPECT_THAT(join.dropped, ElementsAre(Pair(HasSubstr("no record_param_comms"), 2)));
}

// A coalesced all-gather whose call lists shards of these sizes; none: the call has no shapes.
json Coalesced(int rank, const std::vector<int64_t>& shards) {
  int64_t in = shards.empty() ? 64 : 0;
  json dims = json::array();
  for (const int64_t shard : shards) {
    in += shard;
    dims.push_back(json::array({shard}));
  }
  json kernel = Kernel(9, 9, 1, "allgather_into_tensor_coalesced", in, in * 2, 2);
  json call = kernel;
  call["cat"] = "cpu_op";
  call["name"] = "record_param_comms";
  if (!shards.empty()) {
    call["args"]["Input Dims"] = json::array({dims, json::array()});
    call["args"]["Input type"] = {"TensorList", ""};
  }
  return Document(rank, {kernel, call});
}

TEST(Trace, ACoalescedCallIsAGroupedLaunchOfItsTensors) {
  const TraceJoin one = Join({Coalesced(0, {64}), Coalesced(1, {64})});
  ASSERT_THAT(one.observations, SizeIs(1));
  EXPECT_EQ(one.observations[0].launches, 1);
  const TraceJoin three = Join({Coalesced(0, {8, 16, 64}), Coalesced(1, {8, 16, 64})});
  ASSERT_THAT(three.observations, SizeIs(1));
  EXPECT_EQ(three.observations[0].launches, 3);
  EXPECT_EQ(three.observations[0].bytes, (8 + 16 + 64) * 2 * 2);
  const TraceJoin unknown = Join({Coalesced(0, {}), Coalesced(1, {})});
  EXPECT_THAT(unknown.observations, IsEmpty());
  EXPECT_THAT(unknown.dropped, ElementsAre(Pair(HasSubstr("record_shapes"), 2)));
}

TEST(Trace, AFunctionalOpAroundTheCallTellsOneTensorWithoutShapes) {
  const auto under = [](const std::string& name, double start_us, double dur_us, int thread) {
    std::vector<json> documents;
    for (const int rank : {0, 1}) {
      documents.push_back(Coalesced(rank, {}));
      json op = documents.back()["traceEvents"][2];
      op["name"] = name;
      op["ts"] = start_us;
      op["dur"] = dur_us;
      op["tid"] = thread;
      op["args"] = json::object();
      documents.back()["traceEvents"].push_back(op);
    }
    return Join(documents).observations.size();
  };
  // The call is on thread 7, from 9 to 18.
  EXPECT_EQ(under("_c10d_functional::all_gather_into_tensor", 8, 11, 7), 1);
  EXPECT_EQ(under("_c10d_functional::all_gather_into_tensor", 8, 9, 7), 0);
  EXPECT_EQ(under("_c10d_functional::all_gather_into_tensor", 9.5, 11, 7), 0);
  EXPECT_EQ(under("_c10d_functional::all_gather_into_tensor", 8, 11, 8), 0);
  EXPECT_EQ(under("_c10d_functional::all_gather_into_tensor_coalesced", 8, 11, 7), 0);
  EXPECT_EQ(under("_c10d_functional::reduce_scatter_tensor", 8, 11, 7), 0);
}

TEST(Trace, GroupsThatAreNotListedInFullAreNotGuessed) {
  const auto traces = [](const json& config, const std::string& ranks) {
    std::vector<json> documents;
    for (const int rank : {0, 1}) {
      json kernel = Gather(0, 9, 1);
      kernel["args"]["Process Group Ranks"] = ranks;
      documents.push_back(Document(rank, {kernel}, "a", config));
    }
    return documents;
  };
  EXPECT_THAT(Join(traces(json::array(), "[0, 1]")).observations, SizeIs(1));
  EXPECT_THAT(Join(traces("[0, 1]", "[0, ...]")).observations, SizeIs(1));
  const TraceJoin cut = Join(traces("[0, ...]", "[0, ...]"));
  EXPECT_THAT(cut.observations, IsEmpty());
  EXPECT_THAT(cut.dropped, ElementsAre(Pair(HasSubstr("not stated in full"), 2)));
  const TraceJoin other = Join(traces({0, 1, 2}, ""));
  EXPECT_THAT(other.dropped, ElementsAre(Pair(HasSubstr("another size"), 2)));
}

TEST(Trace, RanksWithoutATraceAreToldAndTakenOnlyWhereAsked) {
  const json four = {0, 1, 2, 3};
  const std::vector<json> two = {Document(0, {Gather(0, 9, 1, 64, 4)}, "a", four),
                                 Document(1, {Gather(0, 8, 1, 64, 4)}, "a", four)};
  EXPECT_THAT(Join(two).dropped, ElementsAre(Pair(HasSubstr("only 2 of its 4 ranks"), 1)));
  JoinOptions options;
  options.partial = true;
  EXPECT_THAT(Join(two, options).dropped, ElementsAre(Pair(HasSubstr("--ranks-per-node"), 1)));
  options.ranks_per_node = 2;
  options.link_classes = {{"", "any"}, {"dp", "nvlink"}};
  const TraceJoin join = Join(two, options);
  ASSERT_THAT(join.observations, SizeIs(1));
  EXPECT_EQ(join.observations[0].ranks, 2);
  EXPECT_EQ(join.observations[0].of.group_size, 4);
  EXPECT_EQ(join.observations[0].of.ranks_per_node, 2);
  EXPECT_EQ(join.observations[0].of.link_class, "nvlink");
}

TEST(Trace, CommunicatorsOfTheSameRanksStayApart) {
  std::vector<json> documents;
  for (const int rank : {0, 1}) {
    json other = Kernel(1, 5, 1, "allreduce", 8, 8, 2, "fsdp");
    other["args"]["Process Group Ranks"] = "[0, 1]";
    documents.push_back(Document(rank, {Gather(0, 9, 1), other}));
  }
  const TraceJoin join = Join(documents);
  ASSERT_THAT(join.observations, SizeIs(2));
  EXPECT_EQ(join.observations[0].communicator, "0,1 of group 0");
  EXPECT_EQ(join.observations[1].communicator, "0,1 of group fsdp");
}

TEST(Trace, UnevenAllToAllsAreNoSamples) {
  std::vector<json> documents;
  for (const int rank : {0, 1}) {
    json uneven = Kernel(0, 9, 1, "all_to_allv", 12, 12, 2);
    uneven["args"]["In split size"] = "[4, 8]";
    json even = Kernel(10, 9, 2, "all_to_allv", 12, 12, 2);
    even["args"]["In split size"] = even["args"]["Out split size"] = "[6, 6]";
    documents.push_back(Document(rank, {uneven, even}));
  }
  const TraceJoin join = Join(documents);
  EXPECT_THAT(join.observations, SizeIs(1));
  EXPECT_THAT(join.dropped, ElementsAre(Pair(HasSubstr("uneven"), 2)));
}

TEST(Trace, WithoutSequenceNumbersPositionsCountOnOneHostOnly) {
  const auto trace = [](int rank, const std::string& host, double shift) {
    std::vector<json> events = {Gather(10 + shift, 9, 1), Gather(0 + shift, 8, 1),
                                Gather(20 + shift, 7, 1)};
    for (json& event : events) event["args"].erase("Seq");
    return Document(rank, events, host);
  };
  const TraceJoin join = Join({trace(0, "a", 0), trace(1, "a", 1)});
  ASSERT_THAT(join.observations, SizeIs(3));
  EXPECT_EQ(join.observations[0].picoseconds, 8'000'000);  // in the order in which they began
  EXPECT_THAT(Join({trace(0, "a", 0), trace(1, "b", 1)}).dropped,
              ElementsAre(Pair(HasSubstr("clocks of several hosts"), 3)));
  // One rank's trace begins a collective later and ends one later: equal lists, other collectives.
  EXPECT_THAT(Join({trace(0, "a", 0), trace(1, "a", 10)}).dropped,
              ElementsAre(Pair(HasSubstr("at position 0 a rank ends before another begins"), 3)));
}

TEST(Trace, TwoTracesOfOneRankAreRefused) {
  const std::vector<RankTrace> traces = {Read(Document(1, {}), "a.json"),
                                         Read(Document(1, {}), "b.json")};
  const auto join = JoinTraces(traces, {});
  ASSERT_FALSE(join.ok());
  EXPECT_THAT(join.status().message(), HasSubstr("rank 1 has two traces: a.json and b.json"));
}

TEST(Trace, MistakesNameFileAndEvent) {
  const auto error = [](const std::string& text) {
    return std::string(ReadTorchTrace(text, "r0.json").status().message());
  };
  EXPECT_THAT(error(""), HasSubstr("r0.json: "));
  EXPECT_THAT(error("[]"), HasSubstr("r0.json: "));
  EXPECT_THAT(error("{}"), HasSubstr("r0.json: no \"traceEvents\""));
  EXPECT_THAT(error("{\"traceEvents\": []}"), HasSubstr("states no rank"));
  json negative = Document(0, {Gather(0, 9, 1)});
  negative["traceEvents"][1]["dur"] = -1;
  EXPECT_THAT(error(negative.dump()), HasSubstr("r0.json: traceEvents[1] (ncclDevKernel_"));
  json endless = Document(0, {Gather(0, 9, 1)});
  endless["traceEvents"][1]["dur"] = 1e16;
  EXPECT_THAT(error(endless.dump()), HasSubstr("traceEvents[1] (ncclDevKernel_"));
  json shapes = Document(0, {Gather(0, 9, 1)});
  shapes["traceEvents"][1]["args"]["Input Dims"] = 7;
  EXPECT_THAT(error(shapes.dump()), HasSubstr("traceEvents[1] (ncclDevKernel_"));
  json rank = Document(0, {});
  rank["distributedInfo"]["rank"] = -4;
  EXPECT_THAT(error(rank.dump()), HasSubstr("\"distributedInfo\""));
  json stranger = Document(5, {Gather(0, 9, 1)});
  const std::vector<RankTrace> traces = {Read(stranger, "r5.json")};
  EXPECT_THAT(JoinTraces(traces, {}).status().message(),
              HasSubstr("r5.json: group \"0\" is without the trace's own rank 5"));
}

TEST(Trace, SizesThatMakeNoSenseAreCountedNotMultiplied) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  std::vector<json> documents;
  for (const int rank : {0, 1}) {
    documents.push_back(
        Document(rank, {Kernel(0, 9, 1, "allreduce", kHuge, kHuge, 2),
                        Kernel(10, 9, 2, "_allgather_base", 10, 30, 2),
                        Kernel(20, 9, 3, "allreduce", kHuge >> 16, 1, 2),
                        Kernel(30, 9, 4, "allreduce", 0, 0, 2), Gather(40, 0.0001, 5)}));
  }
  const TraceJoin join = Join(documents);
  EXPECT_THAT(join.observations, IsEmpty());
  EXPECT_THAT(join.dropped, ElementsAre(Pair("absurd sizes", 2), Pair(HasSubstr("bytes is"), 1),
                                        Pair(HasSubstr("picoseconds is 0"), 1),
                                        Pair(HasSubstr("do not fit the process group"), 4)));
}

TEST(Trace, UnpackingStopsAtTheLimit) {
  const std::string packed = testing::ReadFile(testing::TestDataPath("traces/gloo.rank0.json.gz"));
  const auto trace = ReadTorchTrace(packed, "r0", 10'000);
  ASSERT_FALSE(trace.ok());
  EXPECT_THAT(trace.status().message(), HasSubstr("r0: gzip: the file unpacks to more than 10000"));
  EXPECT_FALSE(ReadTorchTrace(packed.substr(0, packed.size() / 2), "r0").ok());
  EXPECT_FALSE(ReadTorchTrace(Document(0, {}).dump(), "r0", 10).ok());
}

TEST(Trace, DamagedTracesAreRefusedOrReadNeverMore) {
  const std::string whole =
      Document(0, {Gather(0, 9, 1), Coalesced(0, {8, 16})["traceEvents"][2]}).dump();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ReadTorchTrace(whole.substr(0, size), "cut").ok()) << size;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char c : {'"', '{', ']', '-', '9', '\0', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = c;
      const auto trace = ReadTorchTrace(damaged, "damaged");
      if (trace.ok()) (void)JoinTraces({*trace}, {});
    }
  }
}

// A trace of gloo with these spans and the calls before them.
json Gloo(int rank, const std::vector<std::pair<std::string, std::string>>& spans,
          int64_t groups = 1) {
  std::vector<json> events;
  double at = 100.0;
  for (const auto& [span, call] : spans) {
    json event = {{"ph", "X"},    {"cat", "user_annotation"},
                  {"name", span}, {"ts", at},
                  {"dur", 9},     {"args", {{"Input Dims", {{4, 16}}}, {"Input type", {"float"}}}}};
    events.push_back(event);
    if (call.empty()) continue;
    event["cat"] = "cpu_op";
    event["name"] = call;
    event["ts"] = at - 1;
    events.push_back(event);
    at += 10.0;
  }
  json document = Document(rank, events);
  json& config = document["distributedInfo"]["pg_config"];
  for (int64_t i = 1; i < groups; ++i) {
    config.push_back(config[0]);
    config.back()["pg_name"] = std::to_string(i);
  }
  return document;
}

TEST(Trace, GloosAllReduceIsWhatItsCallSays) {
  const auto both = [](const std::vector<std::pair<std::string, std::string>>& spans) {
    return Join({Gloo(0, spans), Gloo(1, spans)});
  };
  const TraceJoin told = both({{"gloo:all_reduce", "c10d::_reduce_scatter_base_"},
                               {"gloo:all_reduce", "c10d::allreduce_"}});
  ASSERT_THAT(told.observations, SizeIs(2));
  EXPECT_EQ(told.observations[0].of.kind, CollectiveKind::kReduceScatter);
  EXPECT_EQ(told.observations[1].of.kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(told.observations[0].bytes, 4 * 16 * 4);
  const TraceJoin untold = both(
      {{"gloo:all_reduce", "c10d::broadcast_"}, {"gloo:all_gather", "c10d::_allgather_base_"}});
  ASSERT_THAT(untold.observations, SizeIs(1));
  EXPECT_EQ(untold.observations[0].bytes, 2 * 4 * 16 * 4);
  EXPECT_THAT(untold.dropped, ElementsAre(Pair(HasSubstr("may be reduce-scatters"), 2)));
}

TEST(Trace, GloosSpansOfSeveralGroupsAreNotGuessed) {
  const std::vector<std::pair<std::string, std::string>> spans = {
      {"gloo:all_gather", "c10d::_allgather_base_"}};
  const TraceJoin join = Join({Gloo(0, spans, 2), Gloo(1, spans, 2)});
  EXPECT_THAT(join.observations, IsEmpty());
  EXPECT_THAT(join.dropped, ElementsAre(Pair(HasSubstr("in 2 groups"), 2)));
}

}  // namespace
}  // namespace bucketd
