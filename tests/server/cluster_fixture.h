// Three real servers on one folder, which call each other over gRPC, and a fourth that is none.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

#include "proto/cluster.pb.h"
#include "proto/peer.grpc.pb.h"
#include "server/store/sqlite_store.h"
#include "tests/server/agreement_fixture.h"

namespace bucketd {

class ClusterTest : public AgreementTest {
 protected:
  void TearDown() override {
    gate_.Open();
    servers_.clear();
    AgreementTest::TearDown();
  }

  // `prepare`, if any, changes the options of the servers from that number on.
  void StartThree(const std::function<void(int)>& prepare = nullptr) {
    options_.store_dir = folder_ + "/store";
    options_.drain = milliseconds(5000);
    for (int i = 0; i < 3; ++i) {
      if (prepare != nullptr) prepare(i);
      options_.listen = absl::StrCat("unix:", folder_, "/", i);
      options_.cluster_address = options_.listen;
      absl::StatusOr<std::unique_ptr<Server>> server =
          Server::Start(options_, plan_function_, pings_);
      ASSERT_TRUE(server.ok()) << server.status();
      servers_.push_back(*std::move(server));
    }
  }

  // Who waits is told so at once, and not when its deadline is over.
  void DrainAll() {
    for (const auto& server : servers_) server->BeginDrain();
  }

  std::shared_ptr<grpc::Channel> ChannelTo(size_t which) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("unix:", folder_, "/", which),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  // What a client does at one server: asks, uploads if it is asked to, asks again.
  std::future<Reply> Ask(size_t which, const TestGraph& graph, const v1::GetPlanRequest& request) {
    return std::async(std::launch::async, [this, which, &graph, request] {
      const auto stub = v1::Planner::NewStub(ChannelTo(which));
      Reply reply = AskOnce(*stub, request);
      for (int round = 0; round < 3 && reply.asked_to_upload(); ++round) {
        EXPECT_TRUE(UploadTo(*stub, graph).ok());
        reply = AskOnce(*stub, request);
      }
      return reply;
    });
  }
  std::future<Reply> AskRank(size_t which, const JobSpec& spec, uint32_t rank) {
    return Ask(which, ForwardGraph(), JobRequest(ForwardGraph(), spec, {rank}));
  }
  static Reply AskOnce(v1::Planner::Stub& stub, const v1::GetPlanRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    Reply reply;
    reply.status = stub.GetPlan(&context, request, &reply.response);
    return reply;
  }
  static grpc::Status UploadTo(v1::Planner::Stub& stub, const TestGraph& graph) {
    v1::UploadHeader header = HeaderFor(graph);
    header.set_codec(v1::CODEC_UNSPECIFIED);
    OpenUpload upload(stub, header);
    upload.Send(graph.bytes);
    return upload.End();
  }

  double MetricOf(size_t which, const std::string& name, const std::string& label = "",
                  const std::string& value = "") {
    server_.swap(servers_[which]);
    const double metric = Metric(name, label, value);
    server_.swap(servers_[which]);
    return metric;
  }
  bool EventuallyWaitingRanks(size_t which, int ranks) {
    return Eventually([&] { return MetricOf(which, "bucketd_agreement_waiting_ranks") == ranks; });
  }
  // Of a call by hand, as if another server made it.
  v1::ForwardReply Forward(size_t which, uint64_t incarnation, const v1::GetPlanRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ForwardRequest message;
    message.set_incarnation(incarnation);
    message.set_request(request.SerializeAsString());
    v1::ForwardReply reply;
    const grpc::Status status =
        v1::Peers::NewStub(ChannelTo(which))->Forward(&context, message, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  // As it stands in the store.
  uint64_t IncarnationOf(size_t which) {
    const auto store = SqliteStore::Open({{.read_only = true}, folder_ + "/store"});
    EXPECT_TRUE(store.ok()) << store.status();
    const auto value =
        (*store)->GetRecord(Shelf::kReplicas, absl::StrCat("replica/unix:", folder_, "/", which));
    v1::ReplicaRecord record;
    EXPECT_TRUE(value.ok() && value->has_value() && record.ParseFromString(**value));
    return record.incarnation();
  }

  Pings pings_;
  std::vector<std::unique_ptr<Server>> servers_;
};

// Listens where replicas do, stands in the store as one of them, and as the holder of a job. Each
// is another process: the one before it, at the same address, is known to be dead.
class Liar : public v1::Peers::Service {
 public:
  using Answer = std::function<v1::ForwardReply(const v1::ForwardRequest&)>;
  Liar(const std::string& folder, const std::string& job, Answer answer)
      : address_(absl::StrCat("unix:", folder, "/liar")), answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials()).RegisterService(this);
    server_ = builder.BuildAndStart();
    const auto store = SqliteStore::Open({{}, folder + "/store"});
    EXPECT_TRUE(store.ok()) << store.status();
    v1::ReplicaRecord replica;
    replica.set_format_version(1);
    replica.set_incarnation(incarnation_);
    replica.set_beat(1);
    v1::LeaseRecord lease;
    lease.set_format_version(1);
    lease.set_holder(address_);
    lease.set_incarnation(incarnation_);
    lease.set_term(9);
    const std::string name = absl::StrCat("lease/job/", absl::string_view("\0", 1), job);
    EXPECT_TRUE((*store)
                    ->PutRecord(Shelf::kReplicas, absl::StrCat("replica/", address_),
                                replica.SerializeAsString())
                    .ok());
    EXPECT_TRUE((*store)->PutRecord(Shelf::kReplicas, name, lease.SerializeAsString()).ok());
  }
  ~Liar() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Forward(grpc::ServerContext*, const v1::ForwardRequest* request,
                       v1::ForwardReply* reply) override {
    ++asked_;
    *reply = answer_(*request);
    return grpc::Status::OK;
  }
  int asked() const { return asked_; }

 private:
  static inline std::atomic<uint64_t> last_{41};
  const uint64_t incarnation_ = ++last_;
  const std::string address_;
  const Answer answer_;
  std::atomic<int> asked_{0};
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace bucketd
