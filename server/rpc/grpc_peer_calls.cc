#include "server/rpc/grpc_peer_calls.h"

#include <algorithm>
#include <iterator>
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

class GrpcPeerCalls::Call : public PeerCalls::Call {
 public:
  void Cancel() override { context.TryCancel(); }

  grpc::ClientContext context;
  std::unique_ptr<v1::Peers::Stub> stub;
  ConnectionPtr connection;
};

template <typename Request, typename Reply>
class GrpcPeerCalls::CallOf final : public Call {
 public:
  Request request;
  Reply reply;
  Done<Reply> done;
};

GrpcPeerCalls::GrpcPeerCalls(FilesNow files, int calls_of_connection,
                             std::chrono::milliseconds idle)
    : files_(std::move(files)),
      calls_of_connection_(std::max(1, calls_of_connection)),
      idle_(idle) {}

GrpcPeerCalls::~GrpcPeerCalls() { Stop(); }

std::shared_ptr<const TlsFiles> GrpcPeerCalls::Files() const {
  return files_ == nullptr ? nullptr : files_();
}

GrpcPeerCalls::ConnectionPtr GrpcPeerCalls::NewConnection(const std::string& address,
                                                          std::shared_ptr<const TlsFiles> files) {
  auto connection = std::make_shared<Connection>();
  connection->files = std::move(files);
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
  const std::shared_ptr<const TlsFiles> files = Files();
  ConnectionPtr least;
  size_t current = 0;
  for (const ConnectionPtr& connection : connections) {
    if (connection->files != files) continue;  // they were replaced: KeepOnly closes it
    ++current;
    if (least == nullptr || connection->calls < least->calls) least = connection;
  }
  const bool has_room =
      least != nullptr && (least->calls < calls_of_connection_ || current >= kMostConnections);
  ConnectionPtr chosen = has_room ? least : connections.emplace_back(NewConnection(address, files));
  ++chosen->calls;
  return chosen;
}

template <typename Request, typename Reply, typename Method>
std::shared_ptr<PeerCalls::Call> GrpcPeerCalls::Start(Method method, const std::string& address,
                                                      Request request, SteadyTime deadline,
                                                      Done<Reply> done) {
  auto call = std::make_shared<CallOf<Request, Reply>>();
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
  method(*call->stub->async(), &call->context, &call->request, &call->reply,
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

std::shared_ptr<PeerCalls::Call> GrpcPeerCalls::Forward(const std::string& address,
                                                        v1::ForwardRequest request,
                                                        SteadyTime deadline,
                                                        Done<v1::ForwardReply> done) {
  return Start([](auto& stub, auto... with) { stub.Forward(with...); }, address, std::move(request),
               deadline, std::move(done));
}

void GrpcPeerCalls::ShowJobs(const std::string& address, v1::ShowJobsRequest request,
                             SteadyTime deadline, Done<v1::ShowJobsReply> done) {
  Start([](auto& stub, auto... with) { stub.ShowJobs(with...); }, address, std::move(request),
        deadline, std::move(done));
}

void GrpcPeerCalls::ForgetJobs(const std::string& address, v1::ForgetJobsRequest request,
                               SteadyTime deadline, Done<v1::ForgetJobsReply> done) {
  Start([](auto& stub, auto... with) { stub.ForgetJobs(with...); }, address, std::move(request),
        deadline, std::move(done));
}

void GrpcPeerCalls::OneLess(Connection& connection) {
  --connection.calls;
  connection.used = std::chrono::steady_clock::now();
}

void GrpcPeerCalls::KeepOnly(const std::set<std::string>& addresses) {
  std::vector<ConnectionPtr> gone;  // die without the lock
  const SteadyTime now = std::chrono::steady_clock::now();
  const std::shared_ptr<const TlsFiles> files = Files();
  const absl::MutexLock lock(&mutex_);
  for (auto at = connections_.begin(); at != connections_.end();) {
    const bool stays = addresses.contains(at->first);
    std::vector<ConnectionPtr> kept;
    for (ConnectionPtr& connection : at->second) {
      // A channel must not die with its last call, on a thread that gRPC then waits for.
      const bool is_wanted = stays && connection->files == files && now - connection->used < idle_;
      const bool is_used = connection->calls > 0 || is_wanted;
      (is_used ? kept : gone).push_back(std::move(connection));
    }
    at->second = std::move(kept);
    at = at->second.empty() ? connections_.erase(at) : std::next(at);
  }
}

void GrpcPeerCalls::Ended(Call* call) {
  std::shared_ptr<Call> last;  // dies without the lock
  const absl::MutexLock lock(&mutex_);
  OneLess(*call->connection);
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
  OneLess(*connection);
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
