#include "tests/server/fixture.h"

#include <zstd.h>

#include <cstdio>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "prometheus/registry.h"
#include <sys/wait.h>

#include "passes/io/fx_json.h"
#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "proto/error.pb.h"

namespace bucketd {
namespace {

TestGraph Load(const std::string& name) {
  const std::string path = absl::StrCat(getenv("BUCKETD_TEST_DATA"), "/graphs/", name);
  absl::StatusOr<CapturedGraph> captured = ReadCapturedGraphFile(path);
  if (!captured.ok()) {
    ADD_FAILURE() << captured.status();
    return {};
  }
  const absl::StatusOr<NormalizedGraph> normal = Normalize(captured->graph);
  if (!normal.ok()) {
    ADD_FAILURE() << normal.status();
    return {};
  }
  TestGraph graph;
  v1::Graph message;
  GraphToProto(normal->graph, message);
  graph.bytes = message.SerializeAsString();
  graph.digest = GraphDigest(normal->graph);
  MeshToProto(captured->mesh, graph.mesh);
  return graph;
}

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(details.message(), status.error_message());
  return details;
}

template <typename Message>
bool FindDetail(const grpc::Status& status, Message& message) {
  const google::rpc::Status details = Details(status);
  for (const google::protobuf::Any& detail : details.details()) {
    if (detail.UnpackTo(&message)) return true;
  }
  return false;
}

}  // namespace

const TestGraph& ForwardGraph() {
  static const TestGraph graph = Load("llama3_debug_fsdp8.fw.json.gz");
  return graph;
}

const TestGraph& BackwardGraph() {
  static const TestGraph graph = Load("llama3_debug_fsdp8.bw.json.gz");
  return graph;
}

std::string Zstd(const std::string& plain) {
  std::string out(ZSTD_compressBound(plain.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), 1));
  return out;
}

std::string DigestBytes(const Digest& digest) { return std::string(AsBytes(digest)); }

v1::GetPlanRequest RequestFor(const TestGraph& graph) {
  v1::GetPlanRequest request;
  request.set_graph_digest(DigestBytes(graph.digest));
  *request.mutable_mesh() = graph.mesh;
  request.set_client_version("0.1.0");
  return request;
}

v1::GetPlanRequest InlineRequestFor(const TestGraph& graph) {
  v1::GetPlanRequest request = RequestFor(graph);
  request.mutable_graph()->set_codec(v1::CODEC_ZSTD);
  request.mutable_graph()->set_size(static_cast<int64_t>(graph.bytes.size()));
  request.mutable_graph()->set_data(Zstd(graph.bytes));
  return request;
}

v1::UploadHeader HeaderFor(const TestGraph& graph) {
  v1::UploadHeader header;
  header.set_graph_digest(DigestBytes(graph.digest));
  header.set_codec(v1::CODEC_ZSTD);
  header.set_size(static_cast<int64_t>(graph.bytes.size()));
  header.set_content_sha256(DigestBytes(Sha256(graph.bytes)));
  return header;
}

std::string ReasonOf(const grpc::Status& status) {
  google::rpc::ErrorInfo info;
  if (!FindDetail(status, info)) return "";
  EXPECT_EQ(info.domain(), "bucketd");
  return info.reason();
}

std::string MetadataOf(const grpc::Status& status, const std::string& key) {
  google::rpc::ErrorInfo info;
  if (!FindDetail(status, info) || !info.metadata().contains(key)) return "";
  return info.metadata().at(key);
}

int64_t RetryDelayMillis(const grpc::Status& status) {
  google::rpc::RetryInfo info;
  if (!FindDetail(status, info)) return -1;
  return info.retry_delay().seconds() * 1000 + info.retry_delay().nanos() / 1'000'000;
}

PlanFunction Gate::Guard(PlanFunction inner) {
  return [this, inner = std::move(inner)](const Graph& graph, const PlanRequest& request) {
    {
      std::unique_lock lock(mutex_);
      ++entered_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return open_; });
    }
    return inner(graph, request);
  };
}

void Gate::Open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

void Gate::WaitUntilEntered(int computations) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return entered_ >= computations; });
}

int Gate::entered() {
  const std::lock_guard lock(mutex_);
  return entered_;
}

bool Eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    never.wait_for(lock, milliseconds(1));
  }
  return true;
}

OpenUpload::OpenUpload(v1::Planner::Stub& stub, const v1::UploadHeader& header)
    : writer_(stub.UploadGraph(&context_, &response_)) {
  v1::UploadGraphRequest message;
  *message.mutable_header() = header;
  EXPECT_TRUE(writer_->Write(message));
}

bool OpenUpload::Send(const std::string& chunk) {
  v1::UploadGraphRequest message;
  message.set_chunk(chunk);
  return writer_->Write(message);
}

grpc::Status OpenUpload::End() {
  writer_->WritesDone();
  return Finish();
}

grpc::Status OpenUpload::Cancel() {
  context_.TryCancel();
  return Finish();
}

Ran RunProgram(const std::string& command) {
  std::FILE* pipe = popen(absl::StrCat(getenv("BUCKETD_BIN"), "/", command, " 2>&1").c_str(), "r");
  Ran ran;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) ran.output.push_back(static_cast<char>(c));
  const int status = pclose(pipe);
  ran.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

void ServerTest::SetUp() {
  options_.listen = absl::StrCat("unix:", folder_, "/socket");
  options_.http = "";
  options_.compute_slots = 2;
  options_.lame_duck = milliseconds(0);
}

void ServerTest::TearDown() {
  gate_.Open();  // or a worker that a failed test left inside would never end
  StopServer();
}

void ServerTest::StartServer() {
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options_, plan_function_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  stub_ = NewStub();
}

void ServerTest::StopServer() {
  stub_.reset();
  server_.reset();
}

void ServerTest::Restart() {
  StopServer();
  StartServer();
}

std::shared_ptr<grpc::Channel> ServerTest::NewChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(),
                                   arguments);
}

std::unique_ptr<v1::Planner::Stub> ServerTest::NewStub() {
  return v1::Planner::NewStub(NewChannel());
}

Reply ServerTest::GetPlan(const v1::GetPlanRequest& request, milliseconds deadline) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  Reply reply;
  reply.status = stub_->GetPlan(&context, request, &reply.response);
  return reply;
}

std::future<Reply> ServerTest::GetPlanAsync(const v1::GetPlanRequest& request,
                                            milliseconds deadline) {
  return std::async(std::launch::async, [=, this] { return GetPlan(request, deadline); });
}

Reply ServerTest::GetPlanInVain(const v1::GetPlanRequest& request) {
  Reply reply = GetPlan(request, milliseconds(400));
  for (const int seconds : {2, 8, 30}) {
    if (!reply.status.error_details().empty()) break;
    reply = GetPlan(request, std::chrono::seconds(seconds));
  }
  return reply;
}

grpc::Status ServerTest::CallRaw(const std::string& method, const std::string& request,
                                 std::string* reply) {
  grpc::GenericStub stub(NewChannel());
  grpc::ClientContext context;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer in(&slice, 1);
  grpc::ByteBuffer out;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, {}, &in, &out,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  grpc::Status status = done.get_future().get();
  grpc::Slice flat;
  if (reply != nullptr && status.ok() && out.DumpToSingleSlice(&flat).ok()) {
    reply->assign(reinterpret_cast<const char*>(flat.begin()), flat.size());
  }
  return status;
}

grpc::Status ServerTest::Upload(const v1::UploadHeader& header,
                                const std::vector<std::string>& pieces,
                                v1::UploadGraphResponse* response) {
  grpc::ClientContext context;
  v1::UploadGraphResponse ignored;
  auto writer = stub_->UploadGraph(&context, response == nullptr ? &ignored : response);
  v1::UploadGraphRequest message;
  *message.mutable_header() = header;
  bool open = writer->Write(message);
  for (size_t i = 0; open && i < pieces.size(); ++i) {
    message.set_chunk(pieces[i]);
    open = writer->Write(message);
  }
  writer->WritesDone();
  return writer->Finish();
}

grpc::Status ServerTest::Upload(const TestGraph& graph, v1::UploadGraphResponse* response) {
  const std::string packed = Zstd(graph.bytes);
  const size_t half = packed.size() / 2;
  return Upload(HeaderFor(graph), {packed.substr(0, half), packed.substr(half)}, response);
}

double ServerTest::Metric(const std::string& name, const std::string& label,
                          const std::string& value) {
  double sum = 0;
  bool found = false;
  for (const prometheus::MetricFamily& family : server_->registry().Collect()) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      bool matches = label.empty();
      for (const auto& l : metric.label) matches |= l.name == label && l.value == value;
      if (!matches) continue;
      found = true;
      sum += family.type == prometheus::MetricType::Counter ? metric.counter.value
                                                            : metric.gauge.value;
    }
  }
  EXPECT_TRUE(found) << name << " " << label << "=" << value;
  return sum;
}

bool ServerTest::EventuallyWaiting(int callers) {
  return Eventually([&] { return Metric("bucketd_waiting_callers") == callers; });
}

}  // namespace bucketd
