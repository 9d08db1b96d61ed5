// The server's parts without a network: keys, caches, timers, workers, decoding.
#include <zstd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "prometheus/counter.h"

#include "passes/io/profile_json.h"
#include "passes/plan_key.h"
#include "proto/graph.pb.h"
#include "proto/planner.pb.h"
#include "server/base/byte_room.h"
#include "server/base/errors.h"
#include "server/base/lru.h"
#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/graphs/graph_decoder.h"
#include "server/graphs/graph_scan.h"
#include "server/graphs/upload_streams.h"
#include "server/plans/plan_cache.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// ---- plan keys

struct KeyParts {
  std::string tenant;
  Digest digest{};
  Mesh mesh{.dims = {{.name = "dp", .size = 8, .ranks_per_node = 8, .link_class = ""}},
            .device_type = "cuda"};
  PlanOptions options;
  CostProfile profile = BuiltInProfiles()[0];
  std::string planner = "1";
  std::string Key() const {
    return PlanKey(tenant, digest, mesh, options, KeyedProfile(profile), planner);
  }
};

TEST(PlanKeyTest, EveryFieldThatAPlanDependsOnIsInTheKey) {
  std::vector<KeyParts> variants(22);
  variants[1].tenant = "t";
  variants[2].digest[31] = 1;
  variants[3].mesh.dims[0].name = "fsdp";
  variants[4].mesh.dims[0].size = 4;
  variants[5].mesh.dims[0].ranks_per_node = 4;
  variants[6].mesh.dims[0].link_class = "ib";
  variants[7].mesh.device_type = "cpu";
  variants[8].mesh.dims.push_back({.name = "tp", .size = 2, .ranks_per_node = 2, .link_class = ""});
  variants[9].options.mode = "other";
  variants[10].options.numerics = Numerics::kFree;
  variants[11].options.backend = "gloo";
  variants[12].options.effort = 7;
  variants[13].options.memory_limit_ppm = 7;
  variants[14].options.memory_limit_bytes = 7;
  variants[15].options.buckets = "a";
  variants[16].options.prefetch_forward = 7;
  variants[17].options.prefetch_backward = 7;
  variants[18].options.defer_reduce_scatter = 7;
  variants[19].options.reorder = "none";
  variants[20].options.parameter_order = {"w"};
  variants[21].options.strict_coverage = true;
  KeyParts version;
  version.planner = "2";
  KeyParts profile_version;
  profile_version.profile.version += 1;
  KeyParts same_name_other_numbers;
  same_name_other_numbers.profile.gamma_us += 1;
  variants.insert(variants.end(), {version, profile_version, same_name_other_numbers});
  for (size_t a = 0; a < variants.size(); ++a) {
    EXPECT_EQ(variants[a].Key(), variants[a].Key());
    for (size_t b = a + 1; b < variants.size(); ++b) {
      EXPECT_NE(variants[a].Key(), variants[b].Key()) << a << " and " << b;
    }
  }
}

TEST(PlanKeyTest, NoValueCanPassForAnotherField) {
  KeyParts one;
  one.options.buckets = "a\"\nprefetch_forward=7";
  KeyParts two;
  two.options.buckets = "a";
  EXPECT_NE(one.Key(), two.Key());
  one.options = {};
  one.options.parameter_order = {"a", "b"};
  two.options = {};
  two.options.parameter_order = {"a\", \"b"};
  EXPECT_NE(one.Key(), two.Key());
}

TEST(PlanKeyTest, AKeySaysWhoseItIs) {
  KeyParts parts;
  parts.tenant = "t\n";
  const std::string key = parts.Key();
  EXPECT_TRUE(IsPlanKeyOf(key, parts.tenant, parts.digest));
  EXPECT_FALSE(IsPlanKeyOf(key, "t", parts.digest));
  EXPECT_FALSE(IsPlanKeyOf(key, parts.tenant, Sha256("another")));
  for (const char* none : {"", "\n", "key"}) {
    EXPECT_FALSE(IsPlanKeyOf(none, parts.tenant, parts.digest)) << none;
  }
}

TEST(PlanKeyTest, AllRanksOnOneNodeIsOneKeyHoweverItIsSaid) {
  KeyParts zero;
  zero.mesh.dims[0].ranks_per_node = 0;
  EXPECT_EQ(zero.Key(), KeyParts().Key());
}

// ---- cache

TEST(LruTest, DropsWhatWasUsedLongestAgoAndCountsBytes) {
  const auto value = std::make_shared<const std::string>("v");
  Lru<std::string> sizer(1 << 20);
  sizer.Put("a", value, 1000);
  const int64_t one = sizer.bytes();
  Lru<std::string> lru(2 * one);
  lru.Put("a", value, 1000);
  lru.Put("b", value, 1000);
  EXPECT_EQ(lru.entries(), 2) << "exactly full";
  EXPECT_NE(lru.Get("a"), nullptr);
  lru.Put("c", value, 1000);
  EXPECT_EQ(lru.Get("b"), nullptr);
  EXPECT_NE(lru.Get("a"), nullptr);
  EXPECT_NE(lru.Get("c"), nullptr);
  EXPECT_EQ(lru.evictions(), 1);
  EXPECT_EQ(lru.bytes(), 2 * one);
  lru.Put("c", value, 999);
  EXPECT_EQ(lru.bytes(), 2 * one - 1) << "replacing counts once";
  lru.Put("d", value, 1002);
  EXPECT_EQ(lru.entries(), 1) << "one byte too many for two of them";
  lru.Put("huge", value, 100 * one);
  EXPECT_EQ(lru.entries(), 1);
  EXPECT_NE(lru.Get("huge"), nullptr) << "the newest stays, however large";
}

TEST(PlanReplyTest, OnlyTheLastByteSaysWhereAPlanCameFrom) {
  const PlanReplyPtr reply = EncodePlanReply(std::string(100'000, 'p'), "key");
  for (const v1::PlanSource source :
       {v1::PLAN_SOURCE_HIT, v1::PLAN_SOURCE_COMPUTED, v1::PLAN_SOURCE_JOINED}) {
    std::string bytes = reply->response;
    bytes.back() = static_cast<char>(source);
    v1::GetPlanResponse response;
    ASSERT_TRUE(response.ParseFromString(bytes));
    EXPECT_EQ(response.plan().source(), source);
    EXPECT_EQ(response.plan().plan(), std::string(100'000, 'p'));
    EXPECT_EQ(response.plan().plan_sha256(), AsBytes(Sha256(response.plan().plan())));
  }
}

// A length takes one byte more from 2^7, 2^14 and 2^21 on.
TEST(PlanReplyTest, ThePlanStandsInItAsAParserFindsIt) {
  for (const size_t size : {0UL, 1UL, 127UL, 128UL, 16'383UL, 16'384UL, 3'000'000UL}) {
    std::string plan(size, 0);
    for (size_t i = 0; i < size; ++i) plan[i] = static_cast<char>(i % 251);
    const PlanReplyPtr reply = EncodePlanReply(plan, "key");
    v1::GetPlanResponse response;
    ASSERT_TRUE(response.ParseFromString(reply->response));
    EXPECT_EQ(response.plan().plan(), plan) << size;
    EXPECT_EQ(PlanBytesOf(*reply), plan) << size;
  }
}

// ---- timers and workers

TEST(TimersTest, RunInOrderOfTimeAndNotAfterCancel) {
  Timers timers;
  std::vector<int> order;
  std::promise<void> last;
  const steady_clock::time_point now = steady_clock::now();
  timers.Schedule(now + milliseconds(30), [&] {
    order.push_back(3);
    last.set_value();
  });
  const Timers::Id cancelled = timers.Schedule(now + milliseconds(20), [&] { order.push_back(2); });
  timers.Schedule(now + milliseconds(10), [&] { order.push_back(1); });
  timers.Cancel(cancelled);
  last.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{1, 3}));
}

TEST(TimersTest, CancelAndWaitReturnsAfterTheCallbackHasEnded) {
  Timers timers;
  std::promise<void> entered;
  std::promise<void> leave;
  std::atomic<bool> ended{false};
  const Timers::Id id = timers.Schedule(steady_clock::now(), [&] {
    entered.set_value();
    leave.get_future().wait();
    ended = true;
  });
  entered.get_future().wait();
  std::future<bool> cancelled = std::async(std::launch::async, [&] {
    timers.CancelAndWait(id);
    return ended.load();
  });
  leave.set_value();
  EXPECT_TRUE(cancelled.get());
}

TEST(TimersTest, ACallbackMayCancelItself) {
  Timers timers;
  std::promise<void> done;
  std::promise<Timers::Id> id;
  id.set_value(timers.Schedule(steady_clock::now() + milliseconds(5), [&] {
    timers.CancelAndWait(id.get_future().get());
    done.set_value();
  }));
  done.get_future().wait();
  timers.Stop();
  EXPECT_EQ(timers.Schedule(steady_clock::now(), [] {}), 0U);
}

TEST(WorkerPoolTest, RefusesTheFirstJobBeyondItsQueue) {
  WorkerPool pool(1, 2);
  std::promise<void> entered;
  std::promise<void> leave;
  std::shared_future<void> may_leave = leave.get_future().share();
  ASSERT_TRUE(pool.TrySubmit([&] {
    entered.set_value();
    may_leave.wait();
  }));
  entered.get_future().wait();
  EXPECT_TRUE(pool.TrySubmit([] {}));
  std::promise<void> second;
  EXPECT_TRUE(pool.TrySubmit([&] { second.set_value(); }));
  EXPECT_FALSE(pool.TrySubmit([] {}));
  leave.set_value();
  second.get_future().wait();
  EXPECT_TRUE(pool.TrySubmit([] {})) << "there is room again";
  pool.Stop();
  EXPECT_FALSE(pool.TrySubmit([] {}));
}

// ---- room for bytes

TEST(ByteRoomTest, NobodyHoldsMoreThanIsFree) {
  ByteRoom room(300);
  ByteRoom::Held one(room, "a");
  EXPECT_TRUE(one.Resize(150).ok());
  const absl::Status more = one.Resize(151);
  EXPECT_EQ(ReasonOf(more), "OVERLOADED");
  EXPECT_EQ(room.used(), 150) << "a refusal changes nothing";
  ByteRoom::Held other(room, "b");
  EXPECT_EQ(ReasonOf(other.Resize(76)), "OVERLOADED");
  EXPECT_TRUE(other.Resize(75).ok()) << "half of what a leaves";
  EXPECT_EQ(ReasonOf(ByteRoom::Held(room, "a").Resize(1)), "OVERLOADED") << "a peer has one share";
  EXPECT_TRUE(one.Resize(10).ok()) << "less is always possible";
  EXPECT_TRUE(other.Resize(145).ok());
  EXPECT_EQ(ReasonOf(other.Resize(146)), "OVERLOADED");
}

TEST(ByteRoomTest, WhoFindsNoRoomIsNotToldHowMuchOthersHold) {
  ByteRoom room(300);
  ByteRoom::Held other(room, "b");
  ASSERT_TRUE(other.Resize(100).ok());
  const std::string said = SerializeRpcStatus(ByteRoom::Held(room, "a").Resize(101));
  EXPECT_TRUE(absl::StrContains(said, "150")) << "what one who is alone may hold";
}

TEST(UploadStreamsTest, WhoGaveWayHearsItBeforeTheNextMessageAndWithIt) {
  prometheus::Counter displaced;
  UploadStreams streams({.max_streams = 2}, displaced);
  const auto first = streams.Open({"a"}), second = streams.Open({"a"});
  ASSERT_TRUE(first.ok() && second.ok() && streams.BeginWait(*second).ok());
  ASSERT_TRUE(streams.Open({"b"}).ok()) << "a has most, and its newest gives way";
  EXPECT_EQ(displaced.Value(), 1);
  EXPECT_EQ(ReasonOf(streams.Came(*second, 1)), "OVERLOADED");
  EXPECT_EQ(ReasonOf(streams.BeginWait(*second).status()), "OVERLOADED");
  EXPECT_TRUE(streams.BeginWait(*first).ok());
}

TEST(ByteRoomTest, WhatIsHeldIsGivenBackOnce) {
  ByteRoom room(300);
  {
    ByteRoom::Held held(room, "a");
    ASSERT_TRUE(held.Resize(100).ok());
    ByteRoom::Held part = held.Split(30);
    ByteRoom::Held moved = std::move(held);
    EXPECT_EQ(room.used(), 100);
    moved = ByteRoom::Held();
    EXPECT_EQ(room.used(), 30);
    ByteRoom::Held into(room, "b");
    ASSERT_TRUE(into.Resize(20).ok());
    into = std::move(part);
    EXPECT_EQ(room.used(), 30) << "what it held before is free";
  }
  EXPECT_EQ(room.used(), 0);
}

// ---- graphs as they come in

std::string Compress(const std::string& plain, int level = 1) {
  std::string out(ZSTD_compressBound(plain.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), level));
  return out;
}

absl::StatusOr<GraphBytes> Decode(const std::string& data, int64_t size, size_t piece,
                                  int64_t max_ratio = 256) {
  auto decoder = GraphDecoder::Start(v1::CODEC_ZSTD, size, int64_t{1} << 30, max_ratio);
  if (!decoder.ok()) return decoder.status();
  for (size_t at = 0; at < data.size(); at += piece) {
    const absl::Status status = (*decoder)->Append(absl::string_view(data).substr(at, piece));
    if (!status.ok()) return status;
  }
  return (*decoder)->Finish();
}

TEST(GraphDecoderTest, GivesTheSameBytesHoweverTheyAreCut) {
  // Multiples of zstd's block and buffer sizes are where an output buffer is exactly full.
  for (const size_t size : {1UL, 1000UL, 131'071UL, 131'072UL, 131'073UL, 262'144UL, 1'000'003UL}) {
    std::string plain(size, ' ');
    for (size_t i = 0; i < size; ++i) plain[i] = static_cast<char>((i * i) % 251);
    const std::string packed = Compress(plain);
    for (const size_t piece : {1UL, 7UL, 4096UL, 1UL << 20}) {
      if (packed.size() / piece > 100'000) continue;
      const absl::StatusOr<GraphBytes> out =
          Decode(packed, static_cast<int64_t>(size), piece, 100'000);
      ASSERT_TRUE(out.ok()) << size << " in pieces of " << piece << ": " << out.status();
      EXPECT_EQ(out->bytes, plain);
      EXPECT_EQ(out->sha256, Sha256(plain));
    }
  }
}

TEST(GraphDecoderTest, RefusesEveryTruncation) {
  const std::string plain(5000, 'x');
  const std::string packed = Compress(plain);
  for (size_t length = 0; length < packed.size(); ++length) {
    const absl::StatusOr<GraphBytes> out = Decode(packed.substr(0, length), 5000, 1 << 20);
    ASSERT_FALSE(out.ok()) << length;
    EXPECT_EQ(ReasonOf(out.status()), "CONTENT_MISMATCH") << length;
  }
}

TEST(GraphDecoderTest, TheRatioIsABoundAndNotOneMore) {
  // Beyond the free MiB: 4 MiB from what zstd leaves of it.
  const std::string plain(4 << 20, '\0');
  const std::string packed = Compress(plain);
  const auto size = static_cast<int64_t>(plain.size());
  const auto received = static_cast<int64_t>(packed.size());
  const int64_t enough = (size - (1 << 20) + received - 1) / received;
  EXPECT_TRUE(Decode(packed, size, packed.size(), enough).ok());
  const absl::StatusOr<GraphBytes> refused = Decode(packed, size, packed.size(), enough - 1);
  EXPECT_EQ(ReasonOf(refused.status()), "GRAPH_TOO_LARGE") << refused.status();
}

TEST(GraphScanTest, RefusesWhatWouldTakeMemoryOutOfAllProportion) {
  v1::Graph nodes;
  for (int i = 0; i < 11; ++i) nodes.add_nodes();
  EXPECT_TRUE(ScanGraph(nodes.SerializeAsString(), 11).ok());
  EXPECT_EQ(ReasonOf(ScanGraph(nodes.SerializeAsString(), 10)), "GRAPH_TOO_LARGE");

  v1::Graph tensors;
  v1::Node& node = *tensors.add_nodes();
  for (int i = 0; i < 200'000; ++i) node.add_outputs();
  EXPECT_EQ(ReasonOf(ScanGraph(tensors.SerializeAsString(), 10)), "GRAPH_TOO_LARGE");

  v1::Graph strings;
  for (int i = 0; i < 200'000; ++i) strings.add_strings("");
  EXPECT_EQ(ReasonOf(ScanGraph(strings.SerializeAsString(), 10)), "GRAPH_TOO_LARGE");

  v1::Graph shapes;
  v1::Tensor& tensor = *shapes.add_nodes()->add_outputs();
  for (int i = 0; i < 2'000'000; ++i) tensor.add_shape(1);
  EXPECT_EQ(ReasonOf(ScanGraph(shapes.SerializeAsString(), 10)), "GRAPH_TOO_LARGE");
}

TEST(GraphScanTest, RefusesEveryTruncationInsideAField) {
  v1::Graph graph;
  graph.add_strings("aten.mm.default");
  v1::Node& node = *graph.add_nodes();
  node.add_inputs(300);
  node.add_outputs()->add_shape(1000);
  const std::string bytes = graph.SerializeAsString();
  ASSERT_TRUE(ScanGraph(bytes, 10).ok());
  const size_t end_of_strings = 2 + graph.strings(0).size();
  for (size_t length = 1; length < bytes.size(); ++length) {
    if (length == end_of_strings) continue;  // a shorter message, and a whole one
    EXPECT_EQ(ReasonOf(ScanGraph(bytes.substr(0, length), 10)), "GRAPH_MALFORMED") << length;
  }
}

TEST(ErrorsTest, LongMessagesAreCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\xC3\xA9";  // two bytes each
  const absl::Status status = MakeError(Reason::kPlanImpossible, "x" + text);
  EXPECT_LT(status.message().size(), 1600U);
  EXPECT_TRUE(absl::EndsWith(status.message(), "\xC3\xA9 ..."));
  EXPECT_EQ(ReasonOf(status), "PLAN_IMPOSSIBLE");
}

}  // namespace
}  // namespace bucketd
