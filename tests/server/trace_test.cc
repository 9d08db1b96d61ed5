// W3C trace context, request ids, and what log lines say.
#include <chrono>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/base/trace_context.h"
#include "server/plans/plan_request.h"
#include "server/process/log_limit.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";

std::string Header(absl::string_view flags = "00") {
  return absl::StrCat("00-", kTrace, "-", kParent, "-", flags);
}

TEST(TraceContext, ReadsWhatTheStandardAllows) {
  const std::optional<TraceContext> plain = ParseTraceparent(Header("00"));
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->trace_id, kTrace);
  EXPECT_EQ(plain->parent_id, kParent);
  EXPECT_FALSE(plain->sampled);
  EXPECT_TRUE(ParseTraceparent(Header("01"))->sampled);
  EXPECT_TRUE(ParseTraceparent(Header("ff"))->sampled) << "unknown flags are ignored";
  EXPECT_FALSE(ParseTraceparent(Header("fe"))->sampled);
  const std::string later = absl::StrCat("cc", Header("01").substr(2));
  EXPECT_TRUE(ParseTraceparent(later).has_value()) << "a later version";
  EXPECT_TRUE(ParseTraceparent(later + "-what-comes-later").has_value());
}

TEST(TraceContext, IgnoresWhatIsMalformed) {
  const std::string good = Header("01");
  std::vector<std::string> bad = {"",
                                  "00",
                                  good.substr(0, 54),
                                  good + "-",
                                  good + "0",
                                  good + "-00",
                                  absl::StrCat("ff", good.substr(2)),
                                  absl::StrCat("0g", good.substr(2)),
                                  absl::StrCat("cc", good.substr(2), "x"),
                                  absl::StrCat("00-", std::string(32, '0'), "-", kParent, "-01"),
                                  absl::StrCat("00-", kTrace, "-", std::string(16, '0'), "-01"),
                                  Header("0G")};
  std::string upper = good;
  upper[5] = 'F';
  bad.push_back(upper);
  for (const size_t dash : {size_t{2}, size_t{35}, size_t{52}}) {
    bad.push_back(good);
    bad.back()[dash] = '_';
  }
  for (const std::string& header : bad) {
    EXPECT_FALSE(ParseTraceparent(header).has_value()) << header;
  }
}

class TraceTest : public ServerTest {
 protected:
  void TearDown() override {
    ServerTest::TearDown();
    spdlog::set_default_logger(before_);
  }

  // A call with these headers; what came back in `traceparent`, "" if nothing.
  std::string Call(const std::vector<std::string>& headers, bool good = true) {
    grpc::ClientContext context;
    for (const std::string& header : headers) context.AddMetadata("traceparent", header);
    v1::GetPlanRequest request = RequestFor(ForwardGraph());
    if (!good) request.set_graph_digest("short");
    v1::GetPlanResponse response;
    status_ = stub_->GetPlan(&context, request, &response);
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto id = trailers.find("bucketd-request-id");
    request_id_ = id == trailers.end() ? "" : std::string(id->second.data(), id->second.size());
    const auto trace = trailers.find("traceparent");
    return trace == trailers.end() ? "" : std::string(trace->second.data(), trace->second.size());
  }

  // The lines of the log that `call` writes.
  template <typename Function>
  std::vector<std::string> LogOf(bool json, const std::string& level, Function call) {
    testing::internal::CaptureStderr();
    EXPECT_TRUE(ConfigureLog("bucketd", level, json).ok());
    call();
    StopServer();  // whoever was answered may be ahead of the log
    spdlog::default_logger()->flush();
    return absl::StrSplit(testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  }

  grpc::Status status_;
  std::string request_id_;
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(TraceTest, TheAnswerNamesOurSpanInTheCallersTrace) {
  StartServer();
  const std::optional<TraceContext> first = ParseTraceparent(Call({Header("01")}));
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->trace_id, kTrace);
  EXPECT_NE(first->parent_id, kParent);
  EXPECT_TRUE(first->sampled);
  const std::optional<TraceContext> second = ParseTraceparent(Call({Header("00")}, /*good=*/false));
  ASSERT_TRUE(second.has_value()) << "an error is part of the trace";
  EXPECT_FALSE(second->sampled);
  EXPECT_NE(second->parent_id, first->parent_id);
}

TEST_F(TraceTest, AMalformedHeaderIsAsNone) {
  StartServer();
  EXPECT_EQ(Call({}), "");
  EXPECT_TRUE(status_.ok());
  EXPECT_EQ(Call({"00-nonsense"}, /*good=*/false), "");
  EXPECT_NE(request_id_, "");
  EXPECT_EQ(Call({Header(), Header()}, /*good=*/false), "") << "two are none";
}

TEST_F(TraceTest, EveryLineOfARequestNamesRequestAndTrace) {
  StartServer();
  const std::vector<std::string> lines =
      LogOf(true, "debug", [&] { Call({Header("00")}, /*good=*/false); });
  int found = 0;
  for (const std::string& line : lines) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.value("message", "") != "GetPlan") continue;
    ++found;
    EXPECT_EQ(object.at("request"), request_id_);
    EXPECT_EQ(object.at("trace"), kTrace);
    EXPECT_EQ(object.at("parent_span"), kParent);
    EXPECT_EQ(object.at("code"), "INVALID_ARGUMENT");
    EXPECT_EQ(object.at("reason"), "DIGEST_MALFORMED");
    EXPECT_TRUE(object.at("seconds").is_number());
    EXPECT_TRUE(object.contains("error"));
  }
  EXPECT_EQ(found, 1);
}

TEST_F(TraceTest, AComputationIsLoggedUnderTheCallThatLedIt) {
  plan_function_ = gate_.Guard(ComputePlan);
  StartServer();
  constexpr char kOther[] = "0af7651916cd43dd8448eb211c80319c";
  const auto call = [&](const std::string& trace) {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", absl::StrCat("00-", trace, "-", kParent, "-00"));
    v1::GetPlanResponse response;
    EXPECT_TRUE(stub_->GetPlan(&context, InlineRequestFor(ForwardGraph()), &response).ok());
  };
  const std::vector<std::string> lines = LogOf(true, "debug", [&] {
    std::thread leader(call, kTrace);
    gate_.WaitUntilEntered(1);
    std::thread follower(call, kOther);
    EXPECT_TRUE(EventuallyWaiting(2));
    gate_.Open();
    leader.join();
    follower.join();
  });
  std::map<std::string, std::string> request_of;  // by trace
  std::string computed_for, computed_in;
  for (const std::string& line : lines) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (!absl::StrContains(line, ToHex(ForwardGraph().digest))) continue;
    ASSERT_TRUE(object.contains("trace")) << line;
    if (object.at("message") == "GetPlan") {
      request_of[object.at("trace")] = object.at("request");
      EXPECT_EQ(object.at("outcome"), object.at("trace") == kTrace ? "computed" : "joined");
    } else {
      EXPECT_EQ(object.at("message"), "plan computed");
      computed_in = object.at("trace");
      computed_for = object.at("request");
    }
  }
  EXPECT_EQ(request_of.size(), 2U);
  EXPECT_EQ(computed_in, kTrace);
  EXPECT_EQ(computed_for, request_of[kTrace]);
}

TEST_F(TraceTest, WhatFailsOnAWorkerOrAmongRanksNamesItsCall) {
  plan_function_ = [](const Graph&, const PlanRequest&) -> absl::StatusOr<std::string> {
    return MakeError(Reason::kPlannerBug, "it broke");
  };
  StartServer();
  const std::vector<std::string> lines = LogOf(true, "info", [&] {
    for (const bool job : {false, true}) {
      grpc::ClientContext context;
      context.AddMetadata("traceparent", Header("00"));
      v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
      if (job) {  // whose second rank never comes
        request.mutable_job()->set_id("train");
        request.mutable_job()->set_generation(1);
        request.mutable_job()->set_scope("0/fw");
        request.mutable_job()->set_size(2);
        request.mutable_job()->add_rank(0);
      }
      std::future<grpc::Status> call = std::async(std::launch::async, [&] {
        v1::GetPlanResponse response;
        return stub_->GetPlan(&context, request, &response);
      });
      if (job) {
        EXPECT_TRUE(Eventually([&] { return Metric("bucketd_agreement_waiting_ranks") == 1; }));
        server_->BeginDrain();
      }
      EXPECT_FALSE(call.get().ok());
    }
  });
  std::set<std::string> messages;
  for (const std::string& line : lines) {
    const nlohmann::json object = nlohmann::json::parse(line);
    messages.insert(object.at("message"));
    EXPECT_EQ(object.value("trace", ""), kTrace) << line;
    EXPECT_NE(object.value("request", ""), "") << line;
    EXPECT_NE(object.value("reason", ""), "") << line;
  }
  EXPECT_TRUE(messages.contains("plan failed"));
  EXPECT_TRUE(messages.contains("no agreement"));
}

TEST_F(TraceTest, ASampledTraceIsLoggedAtInfoAndOthersAreNot) {
  StartServer();
  const std::vector<std::string> lines = LogOf(false, "info", [&] {
    Call({Header("00")}, false);
    Call({}, false);
    Call({Header("01")}, false);
  });
  std::vector<std::string> calls;
  for (const std::string& line : lines) {
    if (absl::StrContains(line, " GetPlan ")) calls.push_back(line);
  }
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_TRUE(absl::StrContains(calls[0], absl::StrCat("request=", request_id_))) << calls[0];
  EXPECT_TRUE(absl::StrContains(calls[0], absl::StrCat("trace=", kTrace))) << calls[0];
}

TEST_F(TraceTest, WhoSamplesEverythingFillsNoDisk) {
  StartServer();
  constexpr int kCalls = 1500;
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> lines = LogOf(false, "info", [&] {
    for (int i = 0; i < kCalls; ++i) Call({Header("01")}, false);
  });
  const auto took = std::chrono::steady_clock::now() - begin;
  const auto more = static_cast<size_t>(took / LogLimit::kPause + took / LogLimit::kSilence);
  EXPECT_LE(lines.size(), size_t{LogLimit::kBurst} + more + 1);
  EXPECT_GE(lines.size(), size_t{LogLimit::kBurst});
}

TEST(LogLimit, ABurstFitsThenALineInEachPauseAndTheNextSaysHowManyDidNot) {
  LogLimit limit;
  LogLimit::Time now{std::chrono::hours(1)};
  for (int i = 0; i < LogLimit::kBurst; ++i) EXPECT_EQ(limit.Admit("a", now), 0) << i;
  for (int i = 0; i < 7; ++i) EXPECT_EQ(limit.Admit("a", now), std::nullopt);
  EXPECT_EQ(limit.Admit("b", now), 0) << "another kind";
  now += LogLimit::kPause - milliseconds(1);
  EXPECT_EQ(limit.Admit("a", now), std::nullopt);
  now += milliseconds(1);
  EXPECT_EQ(limit.Admit("a", now), 8);
  EXPECT_EQ(limit.Admit("a", now), std::nullopt);
  now += LogLimit::kBurst * LogLimit::kPause;
  EXPECT_EQ(limit.Admit("a", now), 1);
  for (int i = 1; i < LogLimit::kBurst; ++i) EXPECT_EQ(limit.Admit("a", now), 0) << i;
  EXPECT_EQ(limit.Admit("a", now), std::nullopt);
}

TEST(LogLimit, WhatNoLaterLineTellsIsToldAfterAWhile) {
  LogLimit limit;
  LogLimit::Time now{std::chrono::hours(1)};
  for (int i = 0; i < LogLimit::kBurst + 3; ++i) limit.Admit("a", now);
  now += LogLimit::kSilence - milliseconds(1);
  EXPECT_TRUE(limit.TakeLeftOut(now).empty());
  now += milliseconds(1);
  const std::vector<std::pair<std::string, int64_t>> due = limit.TakeLeftOut(now);
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(due[0], std::make_pair(std::string("a"), int64_t{3}));
  EXPECT_TRUE(limit.TakeLeftOut(now).empty());
}

TEST(LogLimit, KindsThatSomebodyMakesUpAreOneKind) {
  LogLimit limit;
  LogLimit::Time now{std::chrono::hours(1)};
  const auto admitted = [&](int first, int last) {
    int count = 0;
    for (int i = first; i < last; ++i) count += limit.Admit(absl::StrCat(i), now).has_value();
    return count;
  };
  constexpr int kKnown = static_cast<int>(LogLimit::kMaxKinds);
  EXPECT_EQ(admitted(0, kKnown), kKnown);
  EXPECT_EQ(admitted(kKnown, 10 * kKnown), LogLimit::kBurst);
  // Whoever has been silent makes room.
  now += LogLimit::kBurst * LogLimit::kPause;
  EXPECT_EQ(admitted(10 * kKnown, 10 * kKnown + 20), 20);
}

TEST(Log, WhatIsLeftOutIsCounted) {
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  testing::internal::CaptureStderr();
  ASSERT_TRUE(ConfigureLog("bucketd", "debug", /*json=*/true).ok());
  constexpr int kLines = 5000;
  for (int i = 0; i < kLines; ++i) {
    LogLine(spdlog::level::warn, "no agreement", {{"n", absl::StrCat(i), true}});
    spdlog::warn("plain {}", i);
  }
  for (int i = 0; i < 300; ++i) spdlog::debug("asked for");
  std::this_thread::sleep_for(LogLimit::kSilence + milliseconds(1500));
  const std::vector<std::string> lines =
      absl::StrSplit(testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  spdlog::set_default_logger(before);
  std::map<std::string, int64_t> told;
  for (const std::string& line : lines) {
    const nlohmann::json object = nlohmann::json::parse(line);
    const std::string text = object.at("message");
    absl::string_view message = text;
    const bool summary = absl::ConsumePrefix(&message, "lines left out: ");
    told[std::string(message.substr(0, message.find_last_not_of("0123456789 ") + 1))] +=
        object.value("not_logged", int64_t{0}) + (summary ? 0 : 1);
  }
  EXPECT_EQ(told["no agreement"], kLines);
  EXPECT_EQ(told["plain"], kLines);
  EXPECT_EQ(told["asked for"], 300);
  EXPECT_LT(lines.size(), size_t{300} + 4 * LogLimit::kBurst);
}

TEST(Log, TheInnermostWorkIsNamedAndThenTheOuterOneAgain) {
  const CallIds outer{"1-1", kTrace, "span", kParent};
  EXPECT_EQ(CurrentCall().request, "");
  {
    const WorkFor names(outer);
    const CallIds untraced{"1-2", "", "", ""};
    {
      const WorkFor within(untraced);
      EXPECT_EQ(CurrentCall().request, "1-2");
      EXPECT_EQ(CurrentCall().trace, "") << "not the outer one's";
    }
    EXPECT_EQ(CurrentCall().trace, kTrace);
    std::thread([] { EXPECT_EQ(CurrentCall().request, "") << "another thread's work"; }).join();
  }
  EXPECT_EQ(CurrentCall().request, "");
}

TEST(Log, ALineStaysOneLineWhateverItSays) {
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  for (const bool json : {true, false}) {
    testing::internal::CaptureStderr();
    ASSERT_TRUE(ConfigureLog("bucketd", "info", json).ok());
    const std::string evil =
        "a\nb\x1f"
        "fake=1\x1e \"quoted\" \\ \x01";
    spdlog::info("plain {}", evil);
    LogLine(spdlog::level::info, "message " + evil, {{"key", evil}, {"n", "1.5", true}, {"e", ""}});
    spdlog::default_logger()->flush();
    const std::vector<std::string> lines =
        absl::StrSplit(testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
    ASSERT_EQ(lines.size(), 2U) << json;
    if (json) {
      EXPECT_TRUE(absl::StartsWith(nlohmann::json::parse(lines[0]).at("message").get<std::string>(),
                                   "plain a\nb"));
      const nlohmann::json second = nlohmann::json::parse(lines[1]);
      EXPECT_EQ(second.at("n"), 1.5);
      EXPECT_EQ(second.at("e"), "");
      EXPECT_FALSE(second.contains("fake")) << lines[1];
      EXPECT_TRUE(absl::StrContains(second.at("key").get<std::string>(), "\"quoted\" \\"));
    } else {
      EXPECT_TRUE(absl::StrContains(lines[1], " n=1.5 e=\"\"")) << lines[1];
      EXPECT_TRUE(absl::StrContains(lines[1], "key=\"a\\nb")) << lines[1];
    }
  }
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace bucketd
