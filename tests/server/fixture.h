// A real server in this process on a unix socket, a real graph, real stubs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"

#include "passes/base/digest.h"
#include "proto/planner.grpc.pb.h"
#include "server/config/options.h"
#include "server/server.h"
#include "tests/temp_folder.h"

namespace bucketd {

using std::chrono::milliseconds;

// What a rank sends: captured, normalised, serialised.
struct TestGraph {
  std::string bytes;
  Digest digest{};
  v1::Mesh mesh;
};
const TestGraph& ForwardGraph();
const TestGraph& BackwardGraph();

std::string Zstd(const std::string& plain);
std::string DigestBytes(const Digest& digest);

v1::GetPlanRequest RequestFor(const TestGraph& graph);
v1::GetPlanRequest InlineRequestFor(const TestGraph& graph);
v1::UploadHeader HeaderFor(const TestGraph& graph);

struct Reply {
  grpc::Status status;
  v1::GetPlanResponse response;
  bool asked_to_upload() const { return status.ok() && response.has_graph_required(); }
  v1::PlanSource source() const { return response.plan().source(); }
};

// Of ErrorInfo; "" if the status has none. Also checks that details and status agree.
std::string ReasonOf(const grpc::Status& status);
std::string MetadataOf(const grpc::Status& status, const std::string& key);
int64_t RetryDelayMillis(const grpc::Status& status);  // -1: no RetryInfo

// Holds computations back until it is opened, and counts them.
class Gate {
 public:
  PlanFunction Guard(PlanFunction inner);
  void Open();
  void WaitUntilEntered(int computations);
  int entered();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int entered_ = 0;
  bool open_ = false;
};

// Waits for something that the server does on its own threads; false after a minute.
bool Eventually(const std::function<bool()>& condition);

// An upload whose messages a test sends one by one; its header has gone.
class OpenUpload {
 public:
  OpenUpload(v1::Planner::Stub& stub, const v1::UploadHeader& header);
  bool Send(const std::string& chunk);  // false: the server has ended it
  grpc::Status Finish() { return writer_->Finish(); }
  grpc::Status End();     // of what was sent
  grpc::Status Cancel();  // what a dead client looks like to the server
  const v1::UploadGraphResponse& response() const { return response_; }

 private:
  grpc::ClientContext context_;
  v1::UploadGraphResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::UploadGraphRequest>> writer_;
};

struct Ran {
  std::string output;  // of both streams
  int exit = -1;
};
// One of BUCKETD_BIN, with its arguments.
Ran RunProgram(const std::string& command);

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Options may be changed before. Listens on a unix socket in a folder of its own.
  void StartServer();
  void StopServer();
  void Restart();                                // with the options as they are now
  std::unique_ptr<v1::Planner::Stub> NewStub();  // on a connection of its own
  std::shared_ptr<grpc::Channel> NewChannel();

  Reply GetPlan(const v1::GetPlanRequest& request, milliseconds deadline = milliseconds(60'000));
  std::future<Reply> GetPlanAsync(const v1::GetPlanRequest& request,
                                  milliseconds deadline = milliseconds(60'000));
  // The server's answer to a caller whose deadline comes. On a machine so busy that the client's
  // own clock was faster, again with more time.
  Reply GetPlanInVain(const v1::GetPlanRequest& request);
  // A unary call, on a connection of its own: bytes in and bytes out, whatever they are.
  grpc::Status CallRaw(const std::string& method, const std::string& request,
                       std::string* reply = nullptr);
  // header, then pieces; stops writing when the server has answered.
  grpc::Status Upload(const v1::UploadHeader& header, const std::vector<std::string>& pieces,
                      v1::UploadGraphResponse* response = nullptr);
  grpc::Status Upload(const TestGraph& graph, v1::UploadGraphResponse* response = nullptr);

  // Of the registry; labels as `name="value",...` in any order, "" for the only series.
  double Metric(const std::string& name, const std::string& label = "",
                const std::string& value = "");
  bool EventuallyWaiting(int callers);

  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
  ServerOptions options_;
  PlanFunction plan_function_ = ComputePlan;
  Gate gate_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Planner::Stub> stub_;
};

}  // namespace bucketd
