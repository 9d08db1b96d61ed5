// What UploadGraph accepts, and what it says about the rest.
#include <string>
#include <thread>
#include <vector>

#include "tests/server/fixture.h"

namespace bucketd {
namespace {

class UploadTest : public ServerTest {
 protected:
  static v1::UploadHeader PlainHeader(const std::string& bytes, const Digest& digest) {
    v1::UploadHeader header;
    header.set_graph_digest(DigestBytes(digest));
    header.set_size(static_cast<int64_t>(bytes.size()));
    header.set_content_sha256(DigestBytes(Sha256(bytes)));
    return header;
  }

  // Sends `messages` as they are.
  grpc::Status Send(const std::vector<v1::UploadGraphRequest>& messages) {
    grpc::ClientContext context;
    v1::UploadGraphResponse response;
    auto writer = stub_->UploadGraph(&context, &response);
    for (const v1::UploadGraphRequest& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }

  // The refusal left nothing behind: the right graph is accepted.
  void ExpectRefused(const grpc::Status& status, grpc::StatusCode code, const std::string& reason) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason) << status.error_message();
    EXPECT_TRUE(Eventually([&] { return Metric("bucketd_upload_reserved_bytes") == 0; }));
    EXPECT_TRUE(Eventually([&] { return Metric("bucketd_uploads_in_flight") == 0; }));
    EXPECT_EQ(Metric("bucketd_graph_cache_entries"), 0);
  }

  static constexpr grpc::StatusCode kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  static constexpr grpc::StatusCode kExhausted = grpc::StatusCode::RESOURCE_EXHAUSTED;
};

TEST_F(UploadTest, AcceptsPlainAndCompressedGraphsInChunksOfAnySize) {
  options_.graph_cache_bytes = 0;  // one graph at a time: each upload is a new one
  StartServer();
  const std::string& bytes = ForwardGraph().bytes;
  std::vector<std::string> small;
  for (size_t at = 0; at < bytes.size(); at += 4099) small.push_back(bytes.substr(at, 4099));
  EXPECT_TRUE(Upload(PlainHeader(bytes, ForwardGraph().digest), small).ok());
  EXPECT_TRUE(Upload(BackwardGraph()).ok());
  const std::string packed = Zstd(bytes);
  std::vector<std::string> tiny;
  for (size_t at = 0; at < packed.size(); at += 977) tiny.push_back(packed.substr(at, 977));
  tiny.insert(tiny.begin() + 1, "");
  EXPECT_TRUE(Upload(HeaderFor(ForwardGraph()), tiny).ok());
  EXPECT_EQ(Metric("bucketd_uploads_total", "outcome", "stored"), 3);
}

TEST_F(UploadTest, EndsEarlyAndWellWhenTheGraphIsThere) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  v1::UploadGraphResponse response;
  ASSERT_TRUE(Upload(ForwardGraph(), &response).ok());
  EXPECT_TRUE(response.already_present());
  EXPECT_EQ(response.graph_digest(), DigestBytes(ForwardGraph().digest));
  EXPECT_EQ(Metric("bucketd_uploads_total", "outcome", "already_present"), 1);
}

TEST_F(UploadTest, EndsEarlyWhenAnotherUploadOvertakesIt) {
  StartServer();
  OpenUpload upload(*stub_, HeaderFor(ForwardGraph()));
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_upload_reserved_bytes") > 0; }));
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  upload.Send("whatever: nobody reads it");
  const grpc::Status status = upload.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(upload.response().already_present());
}

TEST_F(UploadTest, QueryUploadKnowsWhatIsHere) {
  StartServer();
  v1::QueryUploadRequest request;
  request.set_graph_digest(DigestBytes(ForwardGraph().digest));
  v1::QueryUploadResponse response;
  grpc::ClientContext before;
  ASSERT_TRUE(stub_->QueryUpload(&before, request, &response).ok());
  EXPECT_FALSE(response.present());
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  grpc::ClientContext after;
  ASSERT_TRUE(stub_->QueryUpload(&after, request, &response).ok());
  EXPECT_TRUE(response.present());
}

TEST_F(UploadTest, RefusesATruncatedGraph) {
  StartServer();
  const std::string packed = Zstd(ForwardGraph().bytes);
  const grpc::Status cut =
      Upload(HeaderFor(ForwardGraph()), {packed.substr(0, packed.size() - 20)});
  ExpectRefused(cut, kInvalid, "CONTENT_MISMATCH");
  const std::string& bytes = ForwardGraph().bytes;
  const grpc::Status plain =
      Upload(PlainHeader(bytes, ForwardGraph().digest), {bytes.substr(0, bytes.size() - 1)});
  ExpectRefused(plain, kInvalid, "CONTENT_MISMATCH");
  EXPECT_EQ(MetadataOf(plain, "limit"), std::to_string(bytes.size()));
  EXPECT_EQ(MetadataOf(plain, "actual"), std::to_string(bytes.size() - 1));
  ExpectRefused(Upload(HeaderFor(ForwardGraph()), {}), kInvalid, "CONTENT_MISMATCH");
  EXPECT_TRUE(Upload(ForwardGraph()).ok());
}

TEST_F(UploadTest, RefusesADamagedChunk) {
  StartServer();
  std::string packed = Zstd(ForwardGraph().bytes);
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x40);
  ExpectRefused(Upload(HeaderFor(ForwardGraph()), {packed}), kInvalid, "CONTENT_MISMATCH");
  std::string bytes = ForwardGraph().bytes;
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x01);
  const v1::UploadHeader header = PlainHeader(ForwardGraph().bytes, ForwardGraph().digest);
  ExpectRefused(Upload(header, {bytes}), kInvalid, "CONTENT_MISMATCH");
}

TEST_F(UploadTest, RefusesMoreThanWasAnnounced) {
  StartServer();
  const std::string& bytes = ForwardGraph().bytes;
  ExpectRefused(Upload(PlainHeader(bytes, ForwardGraph().digest), {bytes, "x"}), kInvalid,
                "CONTENT_MISMATCH");
}

TEST_F(UploadTest, RefusesAGraphOfAnotherDigest) {
  StartServer();
  const v1::UploadHeader header = PlainHeader(BackwardGraph().bytes, ForwardGraph().digest);
  ExpectRefused(Upload(header, {BackwardGraph().bytes}), kInvalid, "DIGEST_MISMATCH");
}

TEST_F(UploadTest, RefusesWhatIsNoGraph) {
  StartServer();
  const std::string text = "this is no graph, whatever its digest says";
  ExpectRefused(Upload(PlainHeader(text, ForwardGraph().digest), {text}), kInvalid,
                "GRAPH_MALFORMED");
  v1::Graph message;
  ASSERT_TRUE(message.ParseFromString(ForwardGraph().bytes));
  message.mutable_nodes(3)->add_inputs(1'000'000);
  const std::string broken = message.SerializeAsString();
  const grpc::Status status = Upload(PlainHeader(broken, ForwardGraph().digest), {broken});
  ExpectRefused(status, kInvalid, "GRAPH_MALFORMED");
  EXPECT_NE(status.error_message().find("%3"), std::string::npos)
      << "names the node: " << status.error_message();
}

TEST_F(UploadTest, RefusesTooManyBytes) {
  options_.intake.max_graph_bytes = static_cast<int64_t>(ForwardGraph().bytes.size()) - 1;
  StartServer();
  const grpc::Status status = Upload(ForwardGraph());
  ExpectRefused(status, kExhausted, "GRAPH_TOO_LARGE");
  EXPECT_EQ(MetadataOf(status, "actual"), std::to_string(ForwardGraph().bytes.size()));
  EXPECT_EQ(RetryDelayMillis(status), -1) << "coming back does not help";
}

TEST_F(UploadTest, RefusesTooManyNodes) {
  v1::Graph message;
  ASSERT_TRUE(message.ParseFromString(ForwardGraph().bytes));
  options_.intake.max_graph_nodes = message.nodes_size() - 1;
  StartServer();
  const grpc::Status status = Upload(ForwardGraph());
  ExpectRefused(status, kExhausted, "GRAPH_TOO_LARGE");
  EXPECT_EQ(MetadataOf(status, "limit"), std::to_string(message.nodes_size() - 1));
}

TEST_F(UploadTest, RefusesABombWithoutInflatingIt) {
  StartServer();
  const std::string zeros(64 << 20, '\0');
  const std::string packed = Zstd(zeros);
  ASSERT_LT(packed.size(), 100'000U);
  v1::UploadHeader honest = PlainHeader(zeros, ForwardGraph().digest);
  honest.set_codec(v1::CODEC_ZSTD);
  ExpectRefused(Upload(honest, {packed}), kExhausted, "GRAPH_TOO_LARGE");
  v1::UploadHeader liar = honest;
  liar.set_size(1000);
  ExpectRefused(Upload(liar, {packed}), kInvalid, "CONTENT_MISMATCH");
}

TEST_F(UploadTest, RefusesAChunkAboveTheLimit) {
  options_.intake.max_chunk_bytes = 1000;
  StartServer();
  const std::string packed = Zstd(ForwardGraph().bytes);
  const grpc::Status status = Upload(HeaderFor(ForwardGraph()), {packed.substr(0, 1001)});
  ExpectRefused(status, kInvalid, "CHUNK_TOO_LARGE");
  EXPECT_EQ(MetadataOf(status, "limit"), "1000");
}

TEST_F(UploadTest, RefusesStreamsThatAreNoUpload) {
  StartServer();
  v1::UploadGraphRequest header;
  *header.mutable_header() = HeaderFor(ForwardGraph());
  v1::UploadGraphRequest chunk;
  chunk.set_chunk("x");
  ExpectRefused(Send({}), kInvalid, "UPLOAD_PROTOCOL");
  ExpectRefused(Send({chunk}), kInvalid, "UPLOAD_PROTOCOL");
  ExpectRefused(Send({header, header}), kInvalid, "UPLOAD_PROTOCOL");
  ExpectRefused(Send({v1::UploadGraphRequest()}), kInvalid, "UPLOAD_PROTOCOL");
}

TEST_F(UploadTest, RefusesHeadersThatSayNothingUsable) {
  StartServer();
  v1::UploadHeader header = HeaderFor(ForwardGraph());
  header.set_codec(static_cast<v1::Codec>(7));
  ExpectRefused(Upload(header, {}), kInvalid, "CODEC_UNKNOWN");
  header = HeaderFor(ForwardGraph());
  header.set_size(0);
  ExpectRefused(Upload(header, {}), kInvalid, "CONTENT_MISMATCH");
  header = HeaderFor(ForwardGraph());
  header.clear_content_sha256();
  ExpectRefused(Upload(header, {}), kInvalid, "DIGEST_MALFORMED");
  header = HeaderFor(ForwardGraph());
  header.set_graph_digest("four");
  ExpectRefused(Upload(header, {}), kInvalid, "DIGEST_MALFORMED");
}

TEST_F(UploadTest, InlineGraphsMeetTheSameChecks) {
  options_.intake.max_inline_bytes = static_cast<int64_t>(Zstd(ForwardGraph().bytes).size());
  StartServer();
  v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
  request.mutable_graph()->mutable_data()->append("x");
  ExpectRefused(GetPlan(request).status, kExhausted, "GRAPH_TOO_LARGE");
  request = InlineRequestFor(ForwardGraph());
  request.mutable_graph()->mutable_data()->resize(100);
  ExpectRefused(GetPlan(request).status, kInvalid, "CONTENT_MISMATCH");
  request = InlineRequestFor(ForwardGraph());
  request.mutable_graph()->set_codec(static_cast<v1::Codec>(7));
  ExpectRefused(GetPlan(request).status, kInvalid, "CODEC_UNKNOWN");
  EXPECT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
}

TEST_F(UploadTest, BoundsUploadsByCount) {
  options_.intake.max_uploads = 1;
  options_.upload_stall = std::chrono::minutes(10);  // so that it does not count as slow
  StartServer();
  OpenUpload upload(*stub_, HeaderFor(BackwardGraph()));
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_upload_reserved_bytes") > 0; }));
  const grpc::Status by_count = Upload(ForwardGraph());
  EXPECT_EQ(ReasonOf(by_count), "OVERLOADED") << by_count.error_message();
  EXPECT_GT(RetryDelayMillis(by_count), 0);
  // The upload that was there first is not disturbed.
  ASSERT_TRUE(upload.Send(Zstd(BackwardGraph().bytes)));
  EXPECT_TRUE(upload.End().ok());
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_uploads_in_flight") == 0; }));
  EXPECT_TRUE(Upload(ForwardGraph()).ok());
}

}  // namespace
}  // namespace bucketd
