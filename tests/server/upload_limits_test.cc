// Every limit of what is taken in, at the limit and one beyond.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "proto/graph.pb.h"
#include "server/base/errors.h"
#include "server/graphs/graph_scan.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

class UploadLimitsTest : public ServerTest {
 protected:
  static void ExpectTooLarge(const grpc::Status& status, int64_t limit) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(ReasonOf(status), "GRAPH_TOO_LARGE") << status.error_message();
    EXPECT_EQ(MetadataOf(status, "limit"), std::to_string(limit)) << status.error_message();
    EXPECT_EQ(RetryDelayMillis(status), -1) << "coming back does not help";
  }

  static void ExpectOverloaded(const grpc::Status& status, int64_t limit) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(ReasonOf(status), "OVERLOADED") << status.error_message();
    EXPECT_EQ(MetadataOf(status, "limit"), std::to_string(limit)) << status.error_message();
    EXPECT_EQ(MetadataOf(status, "actual"), "") << status.error_message();
    EXPECT_GT(RetryDelayMillis(status), 0) << "coming back helps";
  }

  // An upload that is under way.
  std::unique_ptr<OpenUpload> Begin(const v1::UploadHeader& header) {
    const double streams = Metric("bucketd_uploads_in_flight");
    const double bytes = Metric("bucketd_upload_reserved_bytes");
    auto open = std::make_unique<OpenUpload>(*stub_, header);
    EXPECT_TRUE(Eventually([&] {
      return Metric("bucketd_uploads_in_flight") == streams + 1 &&
             Metric("bucketd_upload_reserved_bytes") > bytes;
    }));
    return open;
  }
  static grpc::Status End(OpenUpload& open, const std::string& chunk) {
    EXPECT_TRUE(open.Send(chunk));
    return open.End();
  }
};

TEST_F(UploadLimitsTest, BytesOfAGraph) {
  const auto size = static_cast<int64_t>(ForwardGraph().bytes.size());
  options_.intake.max_graph_bytes = size;
  StartServer();
  EXPECT_TRUE(Upload(ForwardGraph()).ok());
  options_.intake.max_graph_bytes = size - 1;
  Restart();
  ExpectTooLarge(Upload(ForwardGraph()), size - 1);
  ExpectTooLarge(GetPlan(InlineRequestFor(ForwardGraph())).status, size - 1);
}

TEST_F(UploadLimitsTest, NodesOfAGraph) {
  v1::Graph message;
  ASSERT_TRUE(message.ParseFromString(ForwardGraph().bytes));
  options_.intake.max_graph_nodes = message.nodes_size();
  StartServer();
  EXPECT_TRUE(Upload(ForwardGraph()).ok());
  options_.intake.max_graph_nodes = message.nodes_size() - 1;
  Restart();
  ExpectTooLarge(Upload(ForwardGraph()), message.nodes_size() - 1);
}

TEST_F(UploadLimitsTest, CompressionRatio) {
  // Names of nodes are not part of the digest: the same graph, and more than the free MiB of it.
  v1::Graph message;
  ASSERT_TRUE(message.ParseFromString(ForwardGraph().bytes));
  message.clear_node_names();
  for (int i = 0; i < message.nodes_size(); ++i) message.add_node_names(std::string(8000, 'x'));
  TestGraph large = ForwardGraph();
  large.bytes = message.SerializeAsString();
  const std::string packed = Zstd(large.bytes);
  const auto received = static_cast<int64_t>(packed.size());
  const auto counted = static_cast<int64_t>(large.bytes.size()) - (1 << 20);
  const int64_t enough = (counted + received - 1) / received;
  options_.intake.max_compression_ratio = enough;
  StartServer();
  const grpc::Status fits = Upload(HeaderFor(large), {packed});
  EXPECT_TRUE(fits.ok()) << fits.error_message();
  options_.intake.max_compression_ratio = enough - 1;
  Restart();
  ExpectTooLarge(Upload(HeaderFor(large), {packed}), enough - 1);
}

TEST_F(UploadLimitsTest, BytesOfAChunk) {
  options_.intake.max_chunk_bytes = 1000;
  StartServer();
  const std::string packed = Zstd(ForwardGraph().bytes);
  const grpc::Status refused = Upload(HeaderFor(ForwardGraph()), {packed.substr(0, 1001)});
  EXPECT_EQ(ReasonOf(refused), "CHUNK_TOO_LARGE") << refused.error_message();
  EXPECT_EQ(MetadataOf(refused, "limit"), "1000");
  EXPECT_EQ(MetadataOf(refused, "actual"), "1001");
  std::vector<std::string> pieces;
  for (size_t at = 0; at < packed.size(); at += 1000) pieces.push_back(packed.substr(at, 1000));
  EXPECT_TRUE(Upload(HeaderFor(ForwardGraph()), pieces).ok());
}

TEST_F(UploadLimitsTest, BytesOfAnInlineGraph) {
  const v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
  const auto size = static_cast<int64_t>(request.graph().data().size());
  options_.intake.max_inline_bytes = size;
  StartServer();
  EXPECT_TRUE(GetPlan(request).status.ok());
  options_.intake.max_inline_bytes = size - 1;
  Restart();
  ExpectTooLarge(GetPlan(request).status, size - 1);
}

TEST_F(UploadLimitsTest, UploadsAtATime) {
  options_.intake.max_uploads = 2;
  options_.upload_stall = std::chrono::minutes(10);  // so that neither counts as slow
  StartServer();
  const auto one = Begin(HeaderFor(ForwardGraph()));
  const auto two = Begin(HeaderFor(BackwardGraph()));
  v1::UploadHeader third = HeaderFor(ForwardGraph());
  third.set_tenant("third");
  ExpectOverloaded(Upload(third, {Zstd(ForwardGraph().bytes)}), 2);
  EXPECT_TRUE(End(*one, Zstd(ForwardGraph().bytes)).ok()) << "who was here first is not disturbed";
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_uploads_in_flight") == 1; }));
  EXPECT_TRUE(Upload(third, {Zstd(ForwardGraph().bytes)}).ok());
  EXPECT_TRUE(End(*two, Zstd(BackwardGraph().bytes)).ok());
}

// Sends a byte each 50 ms, three seconds long. For how many seconds the server took them.
double Drip(v1::Planner::Stub& stub) {
  const auto begin = std::chrono::steady_clock::now();
  OpenUpload upload(stub, HeaderFor(BackwardGraph()));
  for (const char byte : Zstd(BackwardGraph().bytes).substr(0, 60)) {
    if (!upload.Send(std::string(1, byte))) break;
    std::this_thread::sleep_for(milliseconds(50));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_FALSE(upload.Cancel().ok());
  return took.count();
}

TEST_F(UploadLimitsTest, BytesASecond) {
  options_.upload_stall = milliseconds(1000);
  options_.upload_rate_bytes = 1000;  // a byte each 50 ms is a fiftieth of that
  StartServer();
  const double slow = Drip(*stub_);
  EXPECT_GE(slow, 0.9) << "it had a second of patience";
  EXPECT_LT(slow, 2.5);
  options_.upload_rate_bytes = 1;
  Restart();
  EXPECT_GE(Drip(*stub_), 3.0) << "twenty times the least rate";
}

TEST_F(UploadLimitsTest, SecondsOfAnUpload) {
  options_.upload_rate_bytes = 1;
  options_.upload_deadline = milliseconds(1500);
  StartServer();
  const double late = Drip(*stub_);
  EXPECT_GE(late, 1.4);
  EXPECT_LT(late, 2.8);
}

TEST_F(UploadLimitsTest, BytesOfAllThatHasArrivedWhateverWasAnnounced) {
  constexpr int64_t kOfAStream = 4096;
  const auto forward = static_cast<int64_t>(ForwardGraph().bytes.size());
  const auto backward = static_cast<int64_t>(BackwardGraph().bytes.size());
  v1::UploadHeader header = HeaderFor(ForwardGraph());
  header.set_codec(v1::CODEC_UNSPECIFIED);
  v1::UploadHeader large = HeaderFor(BackwardGraph());
  large.set_codec(v1::CODEC_UNSPECIFIED);
  options_.intake.max_graph_bytes = backward;
  options_.intake.max_upload_bytes = backward + forward + 2 * kOfAStream;
  StartServer();
  std::vector<std::unique_ptr<OpenUpload>> silent;
  for (int i = 0; i < 2; ++i) silent.push_back(Begin(large));  // announced, and never sent
  EXPECT_TRUE(Upload(header, {ForwardGraph().bytes}).ok());
  silent.clear();

  for (const int64_t missing : {0, 1}) {
    options_.intake.max_upload_bytes = backward + forward + 2 * kOfAStream - missing;
    Restart();
    const auto first = Begin(large);
    ASSERT_TRUE(first->Send(BackwardGraph().bytes));
    ASSERT_TRUE(Eventually([&] {
      return Metric("bucketd_upload_reserved_bytes") == static_cast<double>(backward + kOfAStream);
    }));
    const grpc::Status second = Upload(header, {ForwardGraph().bytes});
    if (missing == 0) {
      EXPECT_TRUE(second.ok()) << second.error_message();
    } else {
      ExpectOverloaded(second, options_.intake.max_upload_bytes);
    }
    v1::GetPlanRequest announced = RequestFor(BackwardGraph());
    announced.mutable_graph()->set_size(backward);
    announced.mutable_graph()->set_data("\n");
    EXPECT_EQ(ReasonOf(GetPlan(announced).status), "CONTENT_MISMATCH") << "so little has room";
    EXPECT_TRUE(first->End().ok());
  }
}

TEST(GraphScanLimitsTest, StringsTensorsAndSlots) {
  const auto strings = [](int n) {
    v1::Graph graph;
    for (int i = 0; i < n; ++i) graph.add_strings("");
    return graph.SerializeAsString();
  };
  constexpr int kLimit = 100'000 + 32 * 10;
  EXPECT_TRUE(ScanGraph(strings(kLimit), 10).ok());
  EXPECT_EQ(ReasonOf(ScanGraph(strings(kLimit + 1), 10)), "GRAPH_TOO_LARGE");
}

TEST(GraphScanLimitsTest, InputsAndShapes) {
  const auto shape = [](int n) {
    v1::Graph graph;
    v1::Tensor& tensor = *graph.add_nodes()->add_outputs();
    for (int i = 0; i < n; ++i) tensor.add_shape(1);
    return graph.SerializeAsString();
  };
  constexpr int kLimit = 1'000'000 + 64 * 10;
  constexpr int kLengthBytes = 3;  // they count too
  EXPECT_TRUE(ScanGraph(shape(kLimit - kLengthBytes), 10).ok());
  EXPECT_EQ(ReasonOf(ScanGraph(shape(kLimit - kLengthBytes + 1), 10)), "GRAPH_TOO_LARGE");
}

}  // namespace
}  // namespace bucketd
