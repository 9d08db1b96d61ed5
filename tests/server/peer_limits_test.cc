// What calls that come from another replica may make one read and hold.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "tests/server/cluster_fixture.h"

namespace bucketd {
namespace {

using std::chrono::hours;

// A rank of a job of two, in so many bytes and a few.
v1::GetPlanRequest LargeRequest(const std::string& job, size_t bytes) {
  v1::GetPlanRequest request = JobRequest(ForwardGraph(), {.id = job, .size = 2}, {0});
  request.mutable_options()->add_parameter_order(std::string(bytes, 'x'));
  return request;
}

// A forwarded call that waits until it is left.
class Waits {
 public:
  Waits(const std::shared_ptr<grpc::Channel>& channel, const v1::ForwardRequest& request)
      : stub_(v1::Peers::NewStub(channel)), request_(request) {
    stub_->async()->Forward(&context_, &request_, &reply_,
                            [this](const grpc::Status&) { ended_.set_value(); });
  }
  ~Waits() {
    context_.TryCancel();
    ended_.get_future().wait();
  }

 private:
  const std::unique_ptr<v1::Peers::Stub> stub_;
  const v1::ForwardRequest request_;
  grpc::ClientContext context_;
  v1::ForwardReply reply_;
  std::promise<void> ended_;
};

class PeerLimitsTest : public ClusterTest {
 protected:
  // With 32 MiB of room for requests, of which a host gets half of what others leave.
  void Start() {
    options_.intake.max_graph_bytes = options_.intake.max_upload_bytes = int64_t{1} << 20;
    options_.max_in_flight_bytes = options_.intake.max_upload_bytes + (int64_t{64} << 20);
    options_.intake.max_chunk_bytes = int64_t{16} << 20;  // and so a message
    options_.upload_lease = hours(1);                     // nobody else is asked for the graph
    StartThree();
    const auto stub = v1::Planner::NewStub(ChannelTo(0));
    ASSERT_TRUE(AskOnce(*stub, RequestFor(ForwardGraph())).asked_to_upload());
  }
  // What the caller of a forwarded request is told that nobody can read.
  std::string ToldOfGarbage(size_t bytes) {
    grpc::ClientContext context;
    v1::ForwardRequest message;
    message.set_incarnation(IncarnationOf(0));
    message.set_request(std::string(bytes, '\xff'));
    v1::ForwardReply reply;
    EXPECT_TRUE(v1::Peers::NewStub(ChannelTo(0))->Forward(&context, message, &reply).ok());
    return ReasonOf(ParseRpcStatus(reply.error()));
  }
};

TEST_F(PeerLimitsTest, AForwardedRequestIsReadIfThereIsRoomAndHeldByItsCallerWhileItWaits) {
  Start();
  EXPECT_EQ(ToldOfGarbage(2'500'000), "REQUEST_MALFORMED") << "it was read";
  v1::ForwardRequest message;
  message.set_incarnation(IncarnationOf(0));
  message.set_request(LargeRequest("large", 3'000'000).SerializeAsString());
  message.mutable_caller()->set_host("ipv4:10.0.0.1");
  {
    const Waits waits(ChannelTo(0), message);
    ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
    // Five times 3,000,000 are held: four for what was read, one for its bytes. Of what is left,
    // half is less than four times 2,500,000; with four it would be more.
    EXPECT_EQ(ToldOfGarbage(2'500'000), "OVERLOADED") << "it was not";
    EXPECT_EQ(ToldOfGarbage(60'000), "REQUEST_MALFORMED") << "small ones are";
  }
  EXPECT_TRUE(Eventually([this] { return ToldOfGarbage(2'500'000) == "REQUEST_MALFORMED"; }));
}

// It would be refused each time.
TEST_F(PeerLimitsTest, WhatIsTooLargeToBeForwardedIsRefusedAtOnce) {
  StartThree();
  std::future<Reply> first = AskRank(0, {.id = "large", .size = 2}, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  constexpr size_t kMessageBytes = size_t{2} << 20;
  v1::GetPlanRequest request = JobRequest(ForwardGraph(), {.id = "large", .size = 2}, {1});
  request.mutable_options()->add_parameter_order(
      std::string(kMessageBytes - 20 - request.ByteSizeLong(), 'x'));
  ASSERT_LE(request.ByteSizeLong(), kMessageBytes);
  const Reply told = AskOnce(*v1::Planner::NewStub(ChannelTo(1)), request);
  EXPECT_EQ(ReasonOf(told.status), "REQUEST_TOO_LARGE") << told.status.error_message();
  EXPECT_NE(told.status.error_message().find(absl::StrCat("unix:", folder_, "/0")),
            std::string::npos);
  EXPECT_TRUE(AskRank(2, {.id = "large", .size = 2}, 1).get().status.ok());
  EXPECT_TRUE(first.get().status.ok());
}

}  // namespace
}  // namespace bucketd
