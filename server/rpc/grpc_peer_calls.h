// Calls to other replicas, by gRPC.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

#include "server/identity/tls_files.h"
#include "server/rpc/peer_calls.h"

namespace bucketd {

class GrpcPeerCalls final : public PeerCalls {
 public:
  // What to show the others and whom to trust, now: the server's own certificate, which is a
  // client's here, and the authorities of its callers. Null: there is no TLS.
  using FilesNow = std::function<std::shared_ptr<const TlsFiles>()>;

  // `calls_of_connection`: as many calls at a time; for more there are more connections. What was
  // not used for `idle`, or was made with files that have been replaced, is closed by the next
  // KeepOnly.
  GrpcPeerCalls(FilesNow files, int calls_of_connection,
                std::chrono::milliseconds idle = std::chrono::minutes(5));
  ~GrpcPeerCalls() override;  // Stop()s

  std::shared_ptr<PeerCalls::Call> Forward(const std::string& address, v1::ForwardRequest request,
                                           SteadyTime deadline,
                                           Done<v1::ForwardReply> done) override;
  void ShowJobs(const std::string& address, v1::ShowJobsRequest request, SteadyTime deadline,
                Done<v1::ShowJobsReply> done) override;
  void ForgetJobs(const std::string& address, v1::ForgetJobsRequest request, SteadyTime deadline,
                  Done<v1::ForgetJobsReply> done) override;
  absl::Status BringGraph(const std::string& address, const std::string& tenant,
                          const Digest& digest, const Graph& graph, SteadyTime deadline) override;
  void KeepOnly(const std::set<std::string>& addresses) override;
  void Stop() override;

 private:
  class Call;
  template <typename Request, typename Reply>
  class CallOf;
  struct Connection {
    std::shared_ptr<const TlsFiles> files;  // it was made with
    std::shared_ptr<grpc::Channel> channel;
    int calls = 0;
    SteadyTime used;  // for the last time
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  // The connection counts one call more.
  ConnectionPtr Connect(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const TlsFiles> Files() const;
  static ConnectionPtr NewConnection(const std::string& address,
                                     std::shared_ptr<const TlsFiles> files);
  // `method` of the stub.
  template <typename Request, typename Reply, typename Method>
  std::shared_ptr<PeerCalls::Call> Start(Method method, const std::string& address, Request request,
                                         SteadyTime deadline, Done<Reply> done);
  void Ended(Call* call);
  static void OneLess(Connection& connection);

  const FilesNow files_;
  const int calls_of_connection_;
  const std::chrono::milliseconds idle_;
  absl::Mutex mutex_;
  std::map<std::string, std::vector<ConnectionPtr>> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<Call*, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> uploads_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bucketd
