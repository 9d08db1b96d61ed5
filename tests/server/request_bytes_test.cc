// What requests may be: their bytes are taken from gRPC, and bounded before anything is parsed.
#include "server/rpc/request_bytes.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"

#include "proto/admin.grpc.pb.h"
#include "proto/agent.grpc.pb.h"
#include "proto/cost_service.grpc.pb.h"
#include "proto/peer.grpc.pb.h"
#include "server/base/errors.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// A message of so many bytes, in a field that none of ours has.
std::string Unknown(int64_t bytes) {
  constexpr char kField[] = "\xfa\x7f";  // 2047, of bytes
  std::string length;
  const int64_t left = bytes - 2 - 3;  // lengths of 16 Ki to 2 Mi take three bytes
  for (int64_t rest = left; length.size() < 3; rest >>= 7) {
    length.push_back(static_cast<char>((rest & 0x7f) | (length.size() < 2 ? 0x80 : 0)));
  }
  return kField + length + std::string(static_cast<size_t>(left), 'x');
}

TEST(RequestBytes, AreTakenFromGrpcAndGoneWhenTheyAreRead) {
  v1::ReleaseJobRequest message;
  message.set_job_id("job");
  for (const bool is_read_well : {true, false}) {
    grpc::ByteBuffer given = Buffer(is_read_well ? message.SerializeAsString() : "\xff\xff");
    RequestBytes bytes(&given);
    EXPECT_EQ(given.Length(), 0U) << "gRPC keeps them";
    const RequestBytes copy = bytes;
    const auto read = bytes.Read<v1::ReleaseJobRequest>();
    EXPECT_EQ(bytes.size(), 0);
    EXPECT_GT(copy.size(), 0);
    ASSERT_EQ(read.ok(), is_read_well) << read.status();
    if (is_read_well) {
      EXPECT_EQ(read->job_id(), "job");
    } else {
      EXPECT_EQ(ReasonOf(read.status()), "REQUEST_MALFORMED");
      EXPECT_EQ(read.status().message(), "not a serialised bucketd.v1.ReleaseJobRequest");
    }
  }
}

TEST(RequestBytes, AreRefusedUnparsedAboveTheLimit) {
  grpc::ByteBuffer given = Buffer(std::string(11, '\xff'));
  RequestBytes bytes(&given);
  const absl::Status refused = bytes.Read<v1::ReleaseJobRequest>(10).status();
  EXPECT_EQ(ReasonOf(refused), "REQUEST_TOO_LARGE");
  EXPECT_EQ(refused.message(), "a bucketd.v1.ReleaseJobRequest of 11 bytes; at most 10");
  EXPECT_EQ(bytes.size(), 0);
}

// Those that are not 64 KiB. 0: what comes is read on a worker, if there is room for it.
const std::map<std::string, int64_t> kLimits = {
    {"Planner/GetPlan", 0},
    {"Planner/UploadGraph", 0},
    {"Peers/Forward", 0},
    {"Peers/ForgetJobs", 256 << 10},
    {"CostProfiles/ReportCosts", 1 << 20},
    {"CostProfiles/ImportProfile", 1 << 20},
};

TEST_F(ServerTest, EveryCallBoundsItsRequest) {
  options_.store_dir = folder_ + "/store";
  options_.cluster_address = absl::StrCat("unix:", folder_, "/replica");
  StartServer();
  int methods = 0;
  for (const char* name : {"Planner", "Admin", "CostProfiles", "Agents", "Peers"}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        absl::StrCat("bucketd.v1.", name));
    for (int i = 0; i < service->method_count(); ++i, ++methods) {
      const std::string method = absl::StrCat(name, "/", service->method(i)->name());
      const auto special = kLimits.find(method);
      const int64_t limit = special == kLimits.end() ? 64 << 10 : special->second;
      const int64_t most = limit == 0 ? 2'000'000 : limit;
      const auto call = [&](int64_t bytes) {
        return CallRaw(absl::StrCat("/bucketd.v1.", method), Unknown(bytes));
      };
      const grpc::Status taken = call(most);
      EXPECT_TRUE(taken.ok() || ReasonOf(taken) != "REQUEST_TOO_LARGE") << method;
      if (limit == 0) continue;
      const grpc::Status refused = call(most + 1);
      ASSERT_FALSE(refused.ok()) << method;
      EXPECT_EQ(ReasonOf(refused), "REQUEST_TOO_LARGE") << method;
      EXPECT_EQ(MetadataOf(refused, "limit"), absl::StrCat(limit)) << method;
      EXPECT_EQ(MetadataOf(refused, "actual"), absl::StrCat(limit + 1)) << method;
    }
  }
  EXPECT_EQ(methods, 27);
}

}  // namespace
}  // namespace bucketd
