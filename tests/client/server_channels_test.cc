// Which connections a client keeps: to the servers that its address stands for now.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/server_channel.h"
#include "gtest/gtest.h"

namespace bucketd::client {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{1000}, kAgain{0};

// "dns:///planners:9460" beside one server that is listed.
class ServerChannelsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<ServerAddress>> LookUpPlanners() const {
    if (stands_for_.empty()) return absl::UnavailableError("the name is not known");
    std::vector<ServerAddress> found;
    for (const std::string& target : stands_for_) found.push_back({target, "planners"});
    return found;
  }
  ServerList Ask() {
    absl::StatusOr<ServerList> list = channels_.InOrder("job//train", kPatience, kAgain);
    EXPECT_TRUE(list.ok()) << list.status();
    return *std::move(list);
  }
  static std::shared_ptr<ServerChannel> To(const std::string& target, const ServerList& list) {
    for (const std::shared_ptr<ServerChannel>& server : list) {
      if (server->target() == target) return server;
    }
    return nullptr;
  }

  std::vector<std::string> stands_for_ = {"unix:/a", "unix:/b"};
  ServerChannels channels_{"unix:/listed,dns:///planners:9460",
                           {},
                           [this](const std::string&, milliseconds) { return LookUpPlanners(); }};
};

TEST_F(ServerChannelsTest, AServerThatANameStandsForNoMoreIsForgottenOnceItsCallsEnded) {
  ServerList before = Ask();
  ASSERT_EQ(before.size(), 3);
  const std::weak_ptr<grpc::Channel> gone = To("unix:/a", before)->channel();
  stands_for_ = {"unix:/b", "unix:/c"};
  const ServerList now = Ask();
  EXPECT_NE(To("unix:/c", now), nullptr);
  for (const char* stays : {"unix:/b", "unix:/listed"}) {
    EXPECT_EQ(To(stays, now), To(stays, before)) << stays;
  }
  EXPECT_FALSE(gone.expired()) << "a call may be under way";
  before.clear();
  EXPECT_TRUE(gone.expired());
}

TEST_F(ServerChannelsTest, OneThatComesBackIsANewOneOfWhichNothingIsKnown) {
  To("unix:/a", Ask())->Leave(milliseconds(60'000));
  EXPECT_GT(To("unix:/a", Ask())->Aside(), milliseconds(0));
  stands_for_ = {"unix:/b"};
  Ask();
  stands_for_ = {"unix:/a", "unix:/b"};
  EXPECT_EQ(To("unix:/a", Ask())->Aside(), milliseconds(0));
}

TEST_F(ServerChannelsTest, OneThatManyCallsLeaveAtOnceIsLeftOnce) {
  const ServerList servers = Ask();
  ServerChannel& server = *servers.front();
  for (int call = 0; call < 64; ++call) server.Leave(milliseconds(0));
  EXPECT_GT(server.Aside(), milliseconds(500));
  EXPECT_LE(server.Aside(), milliseconds(1500));
  server.Leave(milliseconds(5000));
  EXPECT_GT(server.Aside(), milliseconds(4500)) << "it asked for more itself";
}

TEST_F(ServerChannelsTest, WhatANameStoodForIsKeptWhileNobodySaysWhatItStandsForNow) {
  const ServerList before = Ask();
  stands_for_.clear();
  EXPECT_EQ(Ask(), before);
}

TEST_F(ServerChannelsTest, AResolverThatHangsCostsASecondWhereAServerIsKnown) {
  std::vector<milliseconds> asked;
  ServerChannels two("dns:///a:1,dns:///b:1", {}, [&](const std::string&, milliseconds patience) {
    asked.push_back(patience);
    std::this_thread::sleep_for(milliseconds(20));
    return LookUpPlanners();
  });
  ASSERT_TRUE(two.InOrder("", milliseconds(10'000), kAgain).ok());
  ASSERT_EQ(asked.size(), 2);
  EXPECT_LE(asked[0], milliseconds(10'000));
  EXPECT_LE(asked[1], milliseconds(9'980)) << "one time for all names";
  stands_for_.clear();
  EXPECT_TRUE(two.InOrder("", milliseconds(10'000), kAgain).ok());
  ASSERT_EQ(asked.size(), 4);
  EXPECT_LE(std::max(asked[2], asked[3]), milliseconds(1000));
}

TEST_F(ServerChannelsTest, ANameThatStandsForNothingYetIsLookedUpAgain) {
  int looks = 0;
  ServerChannels starting("dns:///planners:9460", {}, [&](const std::string&, milliseconds) {
    if (++looks == 3) return LookUpPlanners();
    return absl::StatusOr<std::vector<ServerAddress>>(absl::UnavailableError("not known"));
  });
  EXPECT_FALSE(starting.InOrder("", milliseconds(50), kAgain).ok());
  EXPECT_EQ(looks, 1) << "no time for another";
  EXPECT_TRUE(starting.InOrder("", milliseconds(10'000), kAgain).ok());
  EXPECT_EQ(looks, 3);
}

// gRPC's own name of its threads that look at files of TLS.
int Watchers() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    count += name == "FileWatcherCert" ? 1 : 0;
  }
  return count;
}

bool EventuallyWatched(int by) {
  for (int i = 0; i < 1000 && Watchers() != by; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  return Watchers() == by;
}

TEST_F(ServerChannelsTest, AllConnectionsOfAClientShareWhatWatchesItsFiles) {
  ChannelOptions options;
  options.tls.ca = absl::StrCat(::testing::TempDir(), "/nobody.pem");
  {
    ServerChannels several("dns:///planners:9460", options,
                           [this](const std::string&, milliseconds) { return LookUpPlanners(); });
    stands_for_ = {"unix:/a"};
    ASSERT_TRUE(several.InOrder("", kPatience, kAgain).ok());
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_EQ(Watchers(), 0) << "sockets of this machine have no TLS";
    for (int round = 0; round < 3; ++round) {
      stands_for_ = {absl::StrCat("127.0.0.1:", 10 + round),
                     absl::StrCat("127.0.0.1:", 20 + round)};
      ASSERT_TRUE(several.InOrder("", kPatience, kAgain).ok());
    }
    std::this_thread::sleep_for(milliseconds(100));  // the last thread has its name by then
    EXPECT_TRUE(EventuallyWatched(1)) << Watchers();
  }
  EXPECT_TRUE(EventuallyWatched(0)) << Watchers();
}

}  // namespace
}  // namespace bucketd::client
