#include "server/rpc/grpc_peer_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include <grpc/grpc.h>

#include "passes/io/proto_io.h"
#include "proto/graph.pb.h"
#include "proto/peer.grpc.pb.h"
#include "proto/planner.grpc.pb.h"
#include "server/rpc/handoff.h"

namespace bucketd {
namespace {

constexpr size_t kChunkBytes = size_t{256} << 10;
constexpr size_t kMostConnections = 64;  // to one replica
// A replica that is there and says nothing: forwarded calls may wait for minutes.
constexpr int kPingEveryMs = 5000;
constexpr int kPingTimeoutMs = 5000;

std::chrono::system_clock::time_point OnTheWall(SteadyTime time) {
  return std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::milliseconds>(
                                                time - std::chrono::steady_clock::now());
}

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const TlsFiles* files) {
  if (files == nullptr) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({files->client_ca, files->key, files->certificate});
}

}  // namespace

class GrpcPeerCalls::Call final : public PeerCalls::Call {
 public:
  void Cancel() override { context.TryCancel(); }

  grpc::ClientContext context;
  std::unique_ptr<v1::Peers::Stub> stub;
  v1::ForwardRequest request;
  v1::ForwardReply reply;
  ConnectionPtr connection;
  Done done;
};

GrpcPeerCalls::GrpcPeerCalls(FilesNow files, int calls_of_connection)
    : files_(std::move(files)), calls_of_connection_(std::max(1, calls_of_connection)) {}

GrpcPeerCalls::~GrpcPeerCalls() { Stop(); }

GrpcPeerCalls::ConnectionPtr GrpcPeerCalls::NewConnection(const std::string& address) const {
  auto connection = std::make_shared<Connection>();
  if (files_ != nullptr) connection->files = files_();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);  // and how long connecting may take
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  connection->channel =
      grpc::CreateCustomChannel(address, CredentialsOf(connection->files.get()), arguments);
  return connection;
}

GrpcPeerCalls::ConnectionPtr GrpcPeerCalls::Connect(const std::string& address) {
  std::vector<ConnectionPtr>& connections = connections_[address];
  // Those of certificates that have been replaced end with their calls.
  const std::shared_ptr<const TlsFiles> files = files_ == nullptr ? nullptr : files_();
  std::erase_if(connections,
                [&](const ConnectionPtr& connection) { return connection->files != files; });
  const auto least = std::min_element(
      connections.begin(), connections.end(),
      [](const ConnectionPtr& a, const ConnectionPtr& b) { return a->calls < b->calls; });
  const bool has_room = least != connections.end() && ((*least)->calls < calls_of_connection_ ||
                                                       connections.size() >= kMostConnections);
  ConnectionPtr chosen = has_room ? *least : connections.emplace_back(NewConnection(address));
  ++chosen->calls;
  return chosen;
}

std::shared_ptr<PeerCalls::Call> GrpcPeerCalls::Forward(const std::string& address,
                                                        v1::ForwardRequest request,
                                                        SteadyTime deadline, Done done) {
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->done = std::move(done);
  call->context.set_deadline(OnTheWall(deadline));
  {
    const absl::MutexLock lock(&mutex_);
    if (!stopped_) {
      call->connection = Connect(address);
      calls_.emplace(call.get(), call);
    }
  }
  if (call->connection == nullptr) {
    call->done(absl::CancelledError("the server is shutting down"));
    return call;
  }
  call->stub = v1::Peers::NewStub(call->connection->channel);
  HandToGrpc(call.get());
  call->stub->async()->Forward(&call->context, &call->request, &call->reply,
                               [this, raw = call.get()](const grpc::Status& status) {
                                 TakeFromGrpc(raw);
                                 if (status.ok()) {
                                   raw->done(std::move(raw->reply));
                                 } else {
                                   raw->done(ToStatus(status));
                                 }
                                 Ended(raw);
                               });
  return call;
}

void GrpcPeerCalls::Ended(Call* call) {
  std::shared_ptr<Call> last;  // dies without the lock
  const absl::MutexLock lock(&mutex_);
  --call->connection->calls;
  const auto found = calls_.find(call);
  last = std::move(found->second);
  calls_.erase(found);
}

absl::Status GrpcPeerCalls::BringGraph(const std::string& address, const std::string& tenant,
                                       const Digest& digest, const Graph& graph,
                                       SteadyTime deadline) {
  v1::Graph message;
  GraphToProto(graph, message);
  const std::string bytes = message.SerializeAsString();
  ConnectionPtr connection;
  grpc::ClientContext context;
  {
    const absl::MutexLock lock(&mutex_);
    if (stopped_) return absl::CancelledError("the server is shutting down");
    connection = Connect(address);
    uploads_.insert(&context);
  }
  context.set_deadline(OnTheWall(deadline));
  v1::UploadGraphResponse response;
  const auto stub = v1::Planner::NewStub(connection->channel);
  const auto writer = stub->UploadGraph(&context, &response);
  v1::UploadGraphRequest part;
  v1::UploadHeader& header = *part.mutable_header();
  header.set_tenant(tenant);
  header.set_graph_digest(std::string(AsBytes(digest)));
  header.set_size(static_cast<int64_t>(bytes.size()));
  header.set_content_sha256(std::string(AsBytes(Sha256(bytes))));
  bool open = writer->Write(part);
  for (size_t at = 0; open && at < bytes.size(); at += kChunkBytes) {
    part.set_chunk(bytes.substr(at, kChunkBytes));
    open = writer->Write(part);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  const absl::MutexLock lock(&mutex_);
  uploads_.erase(&context);
  --connection->calls;
  return ToStatus(status);
}

void GrpcPeerCalls::Stop() {
  const auto none_left = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return calls_.empty() && uploads_.empty();
  };
  const absl::MutexLock lock(&mutex_);
  stopped_ = true;
  for (const auto& [call, keeps] : calls_) call->context.TryCancel();
  for (grpc::ClientContext* upload : uploads_) upload->TryCancel();
  mutex_.Await(absl::Condition(&none_left));
  connections_.clear();
}

}  // namespace bucketd
