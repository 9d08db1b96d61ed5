#include "tests/client/client_queries.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "proto/graph.pb.h"

namespace bucketd::client {

using std::chrono::seconds;

absl::StatusOr<CapturedGraph> ReadGraph(const std::string& name) {
  return ReadCapturedGraphFile(absl::StrCat(getenv("BUCKETD_TEST_DATA"), "/graphs/", name));
}

PlanQuery QueryFor(const std::string& name) {
  PlanQuery query;
  const absl::StatusOr<CapturedGraph> captured = ReadGraph(name);
  EXPECT_TRUE(captured.ok()) << captured.status();
  const absl::StatusOr<NormalizedGraph> normal = Normalize(captured->graph);
  EXPECT_TRUE(normal.ok()) << normal.status();
  v1::Graph message;
  GraphToProto(normal->graph, message);
  query.digest = GraphDigest(normal->graph);
  query.graph = [bytes = message.SerializeAsString()] { return bytes; };
  MeshToProto(captured->mesh, query.mesh);
  query.deadline = seconds(60);
  return query;
}

}  // namespace bucketd::client
