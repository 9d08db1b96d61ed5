#include "tests/bench/service_load.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"

#include "passes/base/digest.h"
#include "proto/planner.pb.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char kMethod[] = "/bucketd.v1.Planner/GetPlan";
constexpr int kMaxConnections = 64;

grpc::ByteBuffer ToByteBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& s : slices) {
    bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return bytes;
}

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

double Percentile(std::vector<float>& values, double percent) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(percent / 100 * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

std::shared_ptr<grpc::Channel> FreshChannel(const std::string& address, const std::string& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // or all would share one connection
  arguments.SetMaxReceiveMessageSize(-1);
  if (tls.empty()) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  const grpc::SslCredentialsOptions files{FileText(tls + "/ca.pem"), FileText(tls + "/client.key"),
                                          FileText(tls + "/client.pem")};
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(files), arguments);
}

struct Load::Call {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::GenericStub* stub = nullptr;
  const grpc::ByteBuffer* request = nullptr;
  grpc::ByteBuffer reply;
  grpc::Status status;
  Clock::time_point start;
};

Load::Load(const std::string& address, int outstanding, const std::string& tls)
    : outstanding_(outstanding) {
  for (int i = 0; i < std::min(outstanding, kMaxConnections); ++i) {
    const std::shared_ptr<grpc::Channel> channel = FreshChannel(address, tls);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20))) {
      std::fprintf(stderr, "nobody answers at %s\n", address.c_str());
      std::exit(1);
    }
    stubs_.push_back(std::make_unique<grpc::GenericStub>(channel));
  }
}

Load::~Load() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void Load::Start(Call& call) {
  call.reply.Clear();
  call.context = std::make_unique<grpc::ClientContext>();
  call.context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  call.start = Clock::now();
  call.reader = call.stub->PrepareUnaryCall(call.context.get(), kMethod, *call.request, &queue_);
  call.reader->StartCall();
  call.reader->Finish(&call.reply, &call.status, &call);
}

LoadResult Load::Run(const std::string& request, size_t reply_bytes, double seconds) {
  const grpc::ByteBuffer bytes = ToByteBuffer(request);
  std::vector<Call> calls(static_cast<size_t>(outstanding_));
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(seconds));
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].stub = stubs_[i % stubs_.size()].get();
    calls[i].request = &bytes;
    Start(calls[i]);
  }
  LoadResult result;
  size_t open = calls.size();
  void* tag = nullptr;
  bool ok = false;
  while (open > 0 && queue_.Next(&tag, &ok)) {
    auto& call = *static_cast<Call*>(tag);
    const Clock::time_point now = Clock::now();
    ++result.requests;
    result.micros.push_back(std::chrono::duration<float, std::micro>(now - call.start).count());
    if (!call.status.ok() || call.reply.Length() != reply_bytes) ++result.failed;
    if (now < end) {
      Start(call);
    } else {
      --open;
    }
  }
  return result;
}

namespace {

struct StormCall {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<grpc::GenericStub> stub;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;

  void Start(const grpc::ByteBuffer& request, grpc::CompletionQueue& queue) {
    reply.Clear();
    context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    reader = stub->PrepareUnaryCall(context.get(), kMethod, request, &queue);
    reader->StartCall();
    reader->Finish(&reply, &status, this);
  }
};

}  // namespace

StormResult Storm(const std::string& address, int connections, const std::string& request,
                  const std::string& with_graph, const std::string& tls) {
  const grpc::ByteBuffer bytes = ToByteBuffer(request);
  const grpc::ByteBuffer graph_bytes = ToByteBuffer(with_graph);
  grpc::CompletionQueue queue;
  std::vector<StormCall> calls(static_cast<size_t>(connections));
  const Clock::time_point start = Clock::now();
  for (StormCall& call : calls) {
    call.channel = FreshChannel(address, tls);
    call.stub = std::make_unique<grpc::GenericStub>(call.channel);
    call.Start(bytes, queue);
  }
  StormResult result;
  std::vector<std::string> replies;
  int open = connections;
  void* tag = nullptr;
  bool ok = false;
  while (open > 0 && queue.Next(&tag, &ok)) {
    auto& call = *static_cast<StormCall*>(tag);
    std::string reply = call.status.ok() ? ToString(call.reply) : std::string();
    // Small: no plan, but the request to send the graph.
    if (!reply.empty() && reply.size() < 64) {
      call.Start(graph_bytes, queue);
      continue;
    }
    --open;
    replies.push_back(std::move(reply));
  }
  result.wall_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  std::string plan;
  for (const std::string& reply : replies) {
    v1::GetPlanResponse message;
    if (reply.empty() || !message.ParseFromString(reply) || !message.has_plan()) {
      ++result.failed;
      continue;
    }
    if (plan.empty()) plan = message.plan().plan();
    if (message.plan().plan() != plan) ++result.failed;
    ++result.plans;
    if (message.plan().source() == v1::PLAN_SOURCE_COMPUTED) ++result.computed;
  }
  return result;
}

std::string CallOnce(const std::shared_ptr<grpc::Channel>& channel, const std::string& request) {
  grpc::CompletionQueue queue;
  StormCall call;
  call.channel = channel;
  call.stub = std::make_unique<grpc::GenericStub>(channel);
  call.Start(ToByteBuffer(request), queue);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (!call.status.ok()) {
    std::fprintf(stderr, "GetPlan: %s\n", call.status.error_message().c_str());
    return "";
  }
  return ToString(call.reply);
}

}  // namespace bucketd
