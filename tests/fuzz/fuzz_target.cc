#include "tests/fuzz/fuzz_target.h"

#include "passes/io/proto_io.h"
#include "passes/ir/normalize.h"
#include "passes/plan/plan.h"
#include "passes/plan/verify.h"
#include "passes/text/bir.h"
#include "proto/graph.pb.h"

namespace bucketd::fuzz {
namespace {

void CheckSame(const Graph& a, const Graph& b, const char* what) {
  Check(GraphDigest(a) == GraphDigest(b), what);
  Check(a.name() == b.name(), what);
  for (NodeId n = 0; n < a.size(); ++n) Check(a.node_name(n) == b.node_name(n), what);
}

}  // namespace

void CheckGraph(const Graph& graph) {
  v1::Graph message;
  GraphToProto(graph, message);
  const std::string bytes = message.SerializeAsString();
  CheckSame(graph, Must(GraphFromBytes(bytes), "a graph is read back from its bytes"),
            "a graph comes back from its bytes");
  const std::string text = PrintBir(graph);
  const ParsedBir parsed = Must(ParseBir(text), "a graph is read back from its text");
  CheckSame(graph, parsed.graph, "a graph comes back from its text");
  Check(PrintBir(parsed.graph) == text, "printing what was printed changes nothing");
  const auto normalized = Normalize(graph);
  if (normalized.ok()) {
    const auto again = Must(Normalize(normalized->graph), "a normalised graph is normalised again");
    Check(GraphDigest(again.graph) == GraphDigest(normalized->graph), "normalising is idempotent");
  }
  (void)VerifyPlan(graph, ProgramOrder(graph));
}

}  // namespace bucketd::fuzz
