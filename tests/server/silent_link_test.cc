// A link to a replica that goes silent: nothing is lost and nothing is closed, and nothing comes.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <string>
#include <thread>

#include <sys/socket.h>
#include <sys/un.h>

#include "tests/server/cluster_fixture.h"

namespace bucketd {
namespace {

// Passes on what one client and a server send each other, until it is held.
class Link {
 public:
  Link(const std::string& from, const std::string& to) {
    const sockaddr_un here = AddressOf(from), there = AddressOf(to);
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    server_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&here), sizeof(here)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(connect(server_, reinterpret_cast<const sockaddr*>(&there), sizeof(there)), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Link() {
    ended_ = true;
    thread_.join();
    for (const int fd : {client_, server_, listener_}) close(fd);
  }
  void Hold() { held_ = true; }

 private:
  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }
  void Run() {
    client_ = accept(listener_, nullptr, nullptr);
    while (!ended_) {
      std::array<pollfd, 2> ends = {pollfd{client_, POLLIN, 0}, pollfd{server_, POLLIN, 0}};
      if (held_ || poll(ends.data(), ends.size(), 20) <= 0) {
        if (held_) std::this_thread::sleep_for(milliseconds(20));
        continue;
      }
      if (ends[0].revents != 0) Pass(client_, server_);
      if (ends[1].revents != 0) Pass(server_, client_);
    }
  }
  void Pass(int from, int to) {
    std::array<char, 65536> bytes{};
    const ssize_t size = recv(from, bytes.data(), bytes.size(), 0);
    if (size <= 0) {
      ended_ = true;
      return;
    }
    for (ssize_t sent = 0; sent < size;) {
      const ssize_t now =
          send(to, bytes.data() + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
      if (now <= 0) return;
      sent += now;
    }
  }

  int listener_ = -1, server_ = -1, client_ = -1;
  std::atomic<bool> held_ = false, ended_ = false;
  std::thread thread_;
};

TEST_F(ClusterTest, RanksBehindALinkThatHasGoneSilentAreAbsentAndOthersStay) {
  pings_ = {.every = milliseconds(500), .timeout = milliseconds(3000)};
  StartThree();
  const JobSpec spec{.size = 2};
  std::future<Reply> stays = AskRank(0, spec, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  std::future<Reply> cut;
  {
    Link link(folder_ + "/link", folder_ + "/0");
    cut = std::async(std::launch::async, [&] {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      const auto stub = v1::Planner::NewStub(grpc::CreateCustomChannel(
          absl::StrCat("unix:", folder_, "/link"), grpc::InsecureChannelCredentials(), arguments));
      return AskOnce(*stub, JobRequest(ForwardGraph(), {.id = "cut", .size = 2}, {0}));
    });
    ASSERT_TRUE(EventuallyWaitingRanks(0, 2));
    link.Hold();
    const auto held = std::chrono::steady_clock::now();
    EXPECT_TRUE(EventuallyWaitingRanks(0, 1));
    EXPECT_LT(std::chrono::steady_clock::now() - held, std::chrono::seconds(30))
        << "its deadline is a minute away";
  }
  EXPECT_FALSE(cut.get().status.ok());
  Calls calls;
  calls.push_back(std::move(stays));
  calls.push_back(AskRank(0, spec, 1));
  EXPECT_NE(PlanOfAll(calls), "");
}

}  // namespace
}  // namespace bucketd
