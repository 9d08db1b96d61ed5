#include "tests/bench/service_load.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"

#include "passes/base/read_file.h"
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

// A GetPlan, and another one when it is over.
struct Call {
  std::shared_ptr<grpc::GenericStub> stub;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
  Clock::time_point start;

  void Start(const grpc::ByteBuffer& request, grpc::CompletionQueue& queue) {
    reply.Clear();
    context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    start = Clock::now();
    reader = stub->PrepareUnaryCall(context.get(), kMethod, request, &queue);
    reader->StartCall();
    reader->Finish(&reply, &status, this);
  }
};

// The next to end; null once the queue is shut down.
Call* Next(grpc::CompletionQueue& queue) {
  void* call = nullptr;
  bool ok = false;
  return queue.Next(&call, &ok) ? static_cast<Call*>(call) : nullptr;
}

// REQUIRES: no call is under way.
void Close(grpc::CompletionQueue& queue) {
  queue.Shutdown();
  while (Next(queue) != nullptr) {
  }
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
  const auto file = [&](const char* name) {
    return ReadFile(absl::StrCat(tls, "/", name), int64_t{1} << 20).value_or("");
  };
  const grpc::SslCredentialsOptions files{file("ca.pem"), file("client.key"), file("client.pem")};
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(files), arguments);
}

Load::Load(const std::string& address, int outstanding, const std::string& tls)
    : outstanding_(outstanding) {
  for (int i = 0; i < std::min(outstanding, kMaxConnections); ++i) {
    const std::shared_ptr<grpc::Channel> channel = FreshChannel(address, tls);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20))) {
      std::fprintf(stderr, "nobody answers at %s\n", address.c_str());
      std::exit(1);
    }
    stubs_.push_back(std::make_shared<grpc::GenericStub>(channel));
  }
}

LoadResult Load::Run(const std::string& request, size_t reply_bytes, double seconds) {
  const grpc::ByteBuffer bytes = ToByteBuffer(request);
  grpc::CompletionQueue queue;
  std::vector<Call> calls(static_cast<size_t>(outstanding_));
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(seconds));
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].stub = stubs_[i % stubs_.size()];
    calls[i].Start(bytes, queue);
  }
  LoadResult result;
  for (size_t open = calls.size(); open > 0;) {
    Call& call = *Next(queue);
    const Clock::time_point now = Clock::now();
    ++result.requests;
    result.micros.push_back(std::chrono::duration<float, std::micro>(now - call.start).count());
    if (!call.status.ok() || call.reply.Length() != reply_bytes) ++result.failed;
    if (now < end) {
      call.Start(bytes, queue);
    } else {
      --open;
    }
  }
  Close(queue);
  return result;
}

StormResult Storm(const std::string& address, int connections, const std::string& request,
                  const std::string& with_graph, const std::string& tls) {
  const grpc::ByteBuffer bytes = ToByteBuffer(request);
  const grpc::ByteBuffer graph_bytes = ToByteBuffer(with_graph);
  grpc::CompletionQueue queue;
  std::vector<Call> calls(static_cast<size_t>(connections));
  const Clock::time_point start = Clock::now();
  for (Call& call : calls) {
    call.stub = std::make_shared<grpc::GenericStub>(FreshChannel(address, tls));
    call.Start(bytes, queue);
  }
  StormResult result;
  std::vector<std::string> replies;
  for (int open = connections; open > 0;) {
    Call& call = *Next(queue);
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
  Close(queue);
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
  Call call;
  call.stub = std::make_shared<grpc::GenericStub>(channel);
  call.Start(ToByteBuffer(request), queue);
  Next(queue);
  Close(queue);
  if (!call.status.ok()) {
    std::fprintf(stderr, "GetPlan: %s\n", call.status.error_message().c_str());
    return "";
  }
  return ToString(call.reply);
}

}  // namespace bucketd
