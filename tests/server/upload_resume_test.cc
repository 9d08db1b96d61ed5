// Uploads that break off in the middle, and go on where they stopped.
#include <string>
#include <vector>

#include "absl/strings/match.h"

#include "tests/server/fixture.h"

namespace bucketd {
namespace {

class UploadResumeTest : public ServerTest {
 protected:
  static v1::UploadHeader PlainHeader(const TestGraph& graph) {
    v1::UploadHeader header = HeaderFor(graph);
    header.set_codec(v1::CODEC_UNSPECIFIED);
    return header;
  }

  static v1::UploadHeader At(v1::UploadHeader header, size_t offset) {
    header.set_resume_offset(static_cast<int64_t>(offset));
    return header;
  }

  // Sends these, waits until the server has them, and is gone.
  void BreakOff(const v1::UploadHeader& header, const std::vector<std::string>& pieces) {
    double expected = Metric("bucketd_upload_received_bytes_total");
    const double abandoned = Metric("bucketd_uploads_total", "outcome", "abandoned");
    OpenUpload upload(*stub_, header);
    for (const std::string& piece : pieces) {
      ASSERT_TRUE(upload.Send(piece));
      expected += static_cast<double>(piece.size());
    }
    ASSERT_TRUE(
        Eventually([&] { return Metric("bucketd_upload_received_bytes_total") == expected; }));
    EXPECT_FALSE(upload.Cancel().ok());
    ASSERT_TRUE(Eventually([&] {
      return Metric("bucketd_uploads_total", "outcome", "abandoned") == abandoned + 1 &&
             Metric("bucketd_uploads_in_flight") == 0;
    }));
  }

  v1::QueryUploadResponse Query(const v1::UploadHeader& header) {
    v1::QueryUploadRequest request;
    request.set_tenant(header.tenant());
    request.set_graph_digest(header.graph_digest());
    request.set_codec(header.codec());
    request.set_content_sha256(header.content_sha256());
    v1::QueryUploadResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->QueryUpload(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  void ExpectNothingHeld() {
    EXPECT_EQ(Metric("bucketd_partial_uploads"), 0);
    EXPECT_TRUE(Eventually([&] { return Metric("bucketd_upload_reserved_bytes") == 0; }));
  }

  static grpc::Status Refusal(const grpc::Status& status, const std::string& reason) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason) << status.error_message();
    return status;
  }
};

TEST_F(UploadResumeTest, GoesOnWhereADeadClientStopped) {
  StartServer();
  const std::string packed = Zstd(ForwardGraph().bytes);
  const size_t half = packed.size() / 2;
  const v1::UploadHeader header = HeaderFor(ForwardGraph());
  BreakOff(header, {packed.substr(0, half)});
  EXPECT_EQ(Query(header).committed_size(), half);
  EXPECT_EQ(Metric("bucketd_partial_uploads"), 1);
  EXPECT_GT(Metric("bucketd_upload_reserved_bytes"), half) << "what came, and zstd's window";
  const grpc::Status status = Upload(At(header, half), {packed.substr(half)});
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Metric("bucketd_uploads_resumed_total"), 1);
  EXPECT_EQ(Metric("bucketd_upload_received_bytes_total"), packed.size()) << "no byte came twice";
  ExpectNothingHeld();
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_COMPUTED);
}

TEST_F(UploadResumeTest, MayBreakOffAgainAndAgain) {
  StartServer();
  const std::string& bytes = BackwardGraph().bytes;
  const v1::UploadHeader header = PlainHeader(BackwardGraph());
  const size_t step = bytes.size() / 4;
  for (size_t at = 0; at < 3 * step; at += step) {
    EXPECT_EQ(Query(header).committed_size(), at);
    BreakOff(At(header, at),
             {bytes.substr(at, step / 3), bytes.substr(at + step / 3, step - step / 3)});
  }
  EXPECT_TRUE(Upload(At(header, 3 * step), {bytes.substr(3 * step)}).ok());
  EXPECT_EQ(Metric("bucketd_uploads_resumed_total"), 3);
  ExpectNothingHeld();
}

TEST_F(UploadResumeTest, GoesOnWhereAStalledUploadStopped) {
  options_.upload_stall = milliseconds(100);
  StartServer();
  const std::string packed = Zstd(ForwardGraph().bytes);
  const v1::UploadHeader header = HeaderFor(ForwardGraph());
  OpenUpload upload(*stub_, header);
  ASSERT_TRUE(upload.Send(packed.substr(0, 1000)));
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_partial_uploads") == 1; }));
  ASSERT_EQ(Query(header).committed_size(), 1000);
  EXPECT_TRUE(Upload(At(header, 1000), {packed.substr(1000)}).ok());
}

TEST_F(UploadResumeTest, RefusesAnyOtherOffsetAndNamesBoth) {
  StartServer();
  const std::string packed = Zstd(ForwardGraph().bytes);
  const v1::UploadHeader header = HeaderFor(ForwardGraph());
  const grpc::Status early = Refusal(Upload(At(header, 777), {packed}), "UPLOAD_PROTOCOL");
  EXPECT_TRUE(absl::StrContains(early.error_message(), "777")) << early.error_message();
  EXPECT_EQ(MetadataOf(early, "limit"), "0");
  BreakOff(header, {packed.substr(0, 1000)});
  for (const int64_t offset : {int64_t{999}, int64_t{1001}, int64_t{-1000}, int64_t{1} << 62}) {
    v1::UploadHeader wrong = header;
    wrong.set_resume_offset(offset);
    const grpc::Status status = Refusal(Upload(wrong, {packed}), "UPLOAD_PROTOCOL");
    EXPECT_TRUE(absl::StrContains(status.error_message(), std::to_string(offset)) &&
                absl::StrContains(status.error_message(), "1000 encoded bytes"))
        << status.error_message();
    EXPECT_EQ(MetadataOf(status, "limit"), "1000");
  }
  v1::UploadHeader longer = At(header, 1000);
  longer.set_size(header.size() + 1);
  Refusal(Upload(longer, {packed}), "UPLOAD_PROTOCOL");
  EXPECT_EQ(Query(header).committed_size(), 1000) << "a refusal takes nothing away";
  EXPECT_TRUE(Upload(At(header, 1000), {packed.substr(1000)}).ok());
}

TEST_F(UploadResumeTest, OnlyTheSameContentOfTheSameTenantInTheSameCodecGoesOn) {
  StartServer();
  const std::string packed = Zstd(ForwardGraph().bytes);
  const v1::UploadHeader header = HeaderFor(ForwardGraph());
  BreakOff(header, {packed.substr(0, 1000)});
  v1::UploadHeader other = header;
  other.set_tenant("another");
  EXPECT_EQ(Query(other).committed_size(), 0);
  other = header;
  other.set_codec(v1::CODEC_UNSPECIFIED);
  EXPECT_EQ(Query(other).committed_size(), 0);
  other = header;
  other.set_content_sha256(DigestBytes(BackwardGraph().digest));
  EXPECT_EQ(Query(other).committed_size(), 0);
  Refusal(Upload(At(other, 1000), {packed.substr(1000)}), "UPLOAD_PROTOCOL");
  other.clear_content_sha256();
  EXPECT_EQ(Query(other).committed_size(), 0) << "who does not say what comes is not asking";
  EXPECT_EQ(Query(header).committed_size(), 1000);
}

TEST_F(UploadResumeTest, IsKeptForItsTimeAndNoLonger) {
  options_.upload_resume = milliseconds(300);
  StartServer();
  const v1::UploadHeader header = HeaderFor(ForwardGraph());
  BreakOff(header, {Zstd(ForwardGraph().bytes).substr(0, 1000)});
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_partial_uploads_dropped_total") == 1; }));
  EXPECT_EQ(Query(header).committed_size(), 0);
  ExpectNothingHeld();
}

TEST_F(UploadResumeTest, IsNotKeptWhereThatIsSwitchedOff) {
  options_.upload_resume = milliseconds(0);
  StartServer();
  const v1::UploadHeader header = HeaderFor(ForwardGraph());
  BreakOff(header, {Zstd(ForwardGraph().bytes).substr(0, 1000)});
  EXPECT_EQ(Query(header).committed_size(), 0);
  ExpectNothingHeld();
}

TEST_F(UploadResumeTest, GivesWayToWhatArrives) {
  options_.intake.max_graph_bytes = static_cast<int64_t>(BackwardGraph().bytes.size());
  options_.intake.max_upload_bytes = options_.intake.max_graph_bytes + 10'000;  // and one of them
  StartServer();
  const v1::UploadHeader header = PlainHeader(BackwardGraph());
  BreakOff(header, {BackwardGraph().bytes.substr(0, 1000)});
  ASSERT_EQ(Query(header).committed_size(), 1000);
  // Fits beside it.
  ASSERT_TRUE(Upload(PlainHeader(ForwardGraph()), {ForwardGraph().bytes}).ok());
  EXPECT_EQ(Query(header).committed_size(), 1000);
  // A graph of the largest size fits beside one of them.
  v1::UploadHeader other = header;
  other.set_tenant("another");
  BreakOff(other, {BackwardGraph().bytes.substr(0, 1000)});
  ASSERT_EQ(Query(other).committed_size(), 1000);
  v1::GetPlanRequest request = RequestFor(BackwardGraph());
  request.set_tenant("third");
  request.mutable_graph()->set_size(static_cast<int64_t>(BackwardGraph().bytes.size()));
  request.mutable_graph()->set_data(BackwardGraph().bytes);
  const Reply reply = GetPlan(request);
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(Query(header).committed_size(), 0) << "the oldest goes first";
  EXPECT_EQ(Query(other).committed_size(), 1000);
  EXPECT_EQ(Metric("bucketd_partial_uploads_dropped_total"), 1);
}

TEST_F(UploadResumeTest, KeepsNoMoreThanUploadsMayBeUnderWay) {
  options_.intake.max_uploads = 2;
  StartServer();
  v1::UploadHeader header = PlainHeader(ForwardGraph());
  for (const char* tenant : {"a", "b", "c"}) {
    header.set_tenant(tenant);
    BreakOff(header, {ForwardGraph().bytes.substr(0, 10)});
  }
  EXPECT_EQ(Metric("bucketd_partial_uploads"), 2);
  header.set_tenant("a");
  EXPECT_EQ(Query(header).committed_size(), 0);
  header.set_tenant("b");
  EXPECT_EQ(Query(header).committed_size(), 10);
}

TEST_F(UploadResumeTest, TheLongerOfTwoIsKept) {
  StartServer();
  const std::string& bytes = ForwardGraph().bytes;
  const v1::UploadHeader header = PlainHeader(ForwardGraph());
  BreakOff(header, {bytes.substr(0, 100)});
  BreakOff(header, {bytes.substr(0, 300)});
  EXPECT_EQ(Query(header).committed_size(), 300);
  BreakOff(header, {bytes.substr(0, 200)});
  EXPECT_EQ(Query(header).committed_size(), 300);
  EXPECT_EQ(Metric("bucketd_partial_uploads"), 1);
  EXPECT_TRUE(Upload(header, {bytes}).ok()) << "starting over is always possible";
  ExpectNothingHeld();
}

TEST_F(UploadResumeTest, WhatWasWrongOrEndedTooEarlyIsNotKept) {
  StartServer();
  const std::string& bytes = ForwardGraph().bytes;
  const v1::UploadHeader plain = PlainHeader(ForwardGraph());
  Refusal(Upload(plain, {bytes.substr(0, 1000)}), "CONTENT_MISMATCH");
  Refusal(Upload(plain, {bytes, "x"}), "CONTENT_MISMATCH");
  const v1::UploadHeader header = HeaderFor(ForwardGraph());
  Refusal(Upload(header, {"no zstd frame starts like this"}), "CONTENT_MISMATCH");
  ExpectNothingHeld();
  EXPECT_EQ(Query(plain).committed_size(), 0);
  EXPECT_EQ(Query(header).committed_size(), 0);
}

TEST_F(UploadResumeTest, WrongBytesUnderTheRightNameCostOneUploadAndNoMore) {
  StartServer();
  std::string wrong = ForwardGraph().bytes;
  wrong[500] = static_cast<char>(wrong[500] ^ 1);
  const v1::UploadHeader header = PlainHeader(ForwardGraph());
  BreakOff(header, {wrong.substr(0, 1000)});
  Refusal(Upload(At(header, 1000), {ForwardGraph().bytes.substr(1000)}), "CONTENT_MISMATCH");
  EXPECT_EQ(Query(header).committed_size(), 0);
  EXPECT_TRUE(Upload(header, {ForwardGraph().bytes}).ok());
}

TEST_F(UploadResumeTest, EndsWellWhenTheGraphHasComeByAnotherWay) {
  StartServer();
  const std::string packed = Zstd(ForwardGraph().bytes);
  const v1::UploadHeader header = HeaderFor(ForwardGraph());
  BreakOff(header, {packed.substr(0, 1000)});
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  EXPECT_TRUE(Query(header).present());
  EXPECT_EQ(Query(header).committed_size(), 0);
  v1::UploadGraphResponse response;
  ASSERT_TRUE(Upload(At(header, 1000), {packed.substr(1000)}, &response).ok());
  EXPECT_TRUE(response.already_present());
}

TEST_F(UploadResumeTest, TheQueryRefusesWhatItDoesNotUnderstand) {
  StartServer();
  v1::QueryUploadRequest request;
  request.set_graph_digest(DigestBytes(ForwardGraph().digest));
  request.set_content_sha256("four");
  v1::QueryUploadResponse response;
  grpc::ClientContext context;
  Refusal(stub_->QueryUpload(&context, request, &response), "DIGEST_MALFORMED");
}

}  // namespace
}  // namespace bucketd
