// A real server with mutual TLS on loopback, certificates for it and for its callers, and the C++
// client's channels to it.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/channel.h"
#include "grpcpp/generic/generic_stub.h"

#include "proto/admin.grpc.pb.h"
#include "proto/agent.grpc.pb.h"
#include "proto/cost_service.grpc.pb.h"
#include "proto/peer.grpc.pb.h"
#include "tests/server/certificates.h"
#include "tests/server/fixture.h"

namespace bucketd {

class SecuredTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    certificates_.emplace(folder_);
    certificates_->MakeAuthority("ca");
    certificates_->Make("server", {.names = "DNS:localhost,IP:127.0.0.1"});
    Client("a", "URI:spiffe://example.org/team-a/train");
    Client("b", "URI:spiffe://example.org/team-b/train");
    Client("ops", "DNS:ops.example.org");
    WriteIdentities();
    options_.listen = "localhost:0";
    options_.tls.certificate_file = certificates_->File("server.pem");
    options_.tls.key_file = certificates_->File("server.key");
    std::filesystem::copy_file(certificates_->File("ca.pem"), certificates_->File("clients.pem"));
    options_.tls.client_ca_file = certificates_->File("clients.pem");
    options_.tls.identities_file = certificates_->File("who.toml");
  }

  void Client(const std::string& name, const std::string& names) {
    certificates_->Make(name, {.names = names});
  }
  static std::string Entry(const std::string& name, const std::string& tenant,
                           const std::string& roles) {
    return absl::StrCat("[[identity]]\nnames = [\"", name, "\"]\ntenant = \"", tenant,
                        "\"\nroles = [\"", absl::StrJoin(absl::StrSplit(roles, ' '), "\", \""),
                        "\"]\n");
  }
  void WriteIdentities(const std::string& more = "") {
    std::ofstream(folder_ + "/who.new")
        << Entry("URI:spiffe://example.org/team-a/*", "team-a", "plan report admin promote")
        << Entry("URI:spiffe://example.org/team-b/*", "team-b", "plan admin")
        << Entry("DNS:ops.example.org", "*", "plan report admin promote") << more;
    std::filesystem::rename(folder_ + "/who.new", folder_ + "/who.toml");
  }

  void Start() {
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options_, plan_function_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // On a connection of its own.
  std::shared_ptr<grpc::Channel> As(const std::string& client, const std::string& ca = "ca") {
    client::ChannelOptions options;
    options.own_connection = true;
    options.tls = certificates_->Client(client, ca);
    return client::MakeChannel(server_->address(), options);
  }
  static std::unique_ptr<grpc::ClientContext> Soon(int seconds = 20) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    return context;
  }
  static grpc::Status Ping(const std::shared_ptr<grpc::Channel>& channel) {
    v1::GetCapabilitiesResponse response;
    return v1::Planner::NewStub(channel)->GetCapabilities(Soon().get(), {}, &response);
  }
  // A call of one message, whatever it is, to the method "bucketd.v1.Planner/GetPlan".
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& message = "") {
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    const auto context = Soon();
    const grpc::Slice slice(message);
    grpc::ByteBuffer request(&slice, 1), response;
    const auto call = stub.PrepareUnaryCall(context.get(), "/" + method, request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  // So that it has the service of replicas, too. REQUIRES: before Start().
  void BeAReplica() {
    options_.store_dir = folder_ + "/store";
    options_.cluster_address = absl::StrCat("unix:", folder_, "/replica");
  }

  // Of all services of ours: "bucketd.v1.Planner/GetPlan".
  static std::vector<std::string> AllMethods() {
    std::vector<std::string> methods;
    for (const char* service : {"Planner", "Admin", "CostProfiles", "Agents", "Peers"}) {
      const auto* descriptor =
          google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
              absl::StrCat("bucketd.v1.", service));
      for (int i = 0; i < descriptor->method_count(); ++i) {
        methods.push_back(
            absl::StrCat(descriptor->full_name(), "/", descriptor->method(i)->name()));
      }
    }
    return methods;
  }

  std::optional<Certificates> certificates_;
};

}  // namespace bucketd
