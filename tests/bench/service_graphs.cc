#include "tests/bench/service_graphs.h"

#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/fx_json.h"
#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "proto/graph.pb.h"
#include "proto/planner.pb.h"

namespace bucketd {
namespace {

// Another copy of a step behind the first: the first one's output node goes, ids move up.
void Append(const v1::Graph& step, v1::Graph& all) {
  all.mutable_nodes()->RemoveLast();
  const auto offset = static_cast<uint32_t>(all.nodes_size());
  for (const v1::Node& node : step.nodes()) {
    v1::Node& copy = *all.add_nodes() = node;
    for (uint32_t& id : *copy.mutable_inputs()) id += offset;
    for (uint32_t& id : *copy.mutable_alias_of()) id += offset;
    for (uint32_t& id : *copy.mutable_mutates()) id += offset;
    for (v1::OutputSlot& slot : *copy.mutable_slots()) {
      if (slot.node() != 0) slot.set_node(slot.node() + offset);
    }
  }
}

}  // namespace

absl::StatusOr<BenchRequest> MakeBenchRequest(const std::string& graph_file, int repeat,
                                              const std::string& mode, const std::string& tenant) {
  ASSIGN_OR_RETURN(const CapturedGraph captured, ReadCapturedGraphFile(graph_file));
  ASSIGN_OR_RETURN(const NormalizedGraph normal, Normalize(captured.graph));
  v1::Graph step;
  GraphToProto(normal.graph, step);
  step.clear_node_names();
  v1::Graph all = step;
  for (int i = 1; i < repeat; ++i) Append(step, all);
  const std::string bytes = all.SerializeAsString();
  ASSIGN_OR_RETURN(const Graph graph, GraphFromBytes(bytes));

  v1::GetPlanRequest request;
  request.set_tenant(tenant);
  request.set_graph_digest(std::string(AsBytes(GraphDigest(graph))));
  request.set_client_version("0.1.0");
  request.mutable_options()->set_mode(mode);
  MeshToProto(captured.mesh, *request.mutable_mesh());
  BenchRequest made;
  made.name = absl::StrCat(std::filesystem::path(graph_file).stem().stem().string(),
                           repeat > 1 ? absl::StrCat(" x ", repeat) : "", ", ", mode);
  made.request = request.SerializeAsString();
  request.mutable_graph()->set_data(bytes);
  request.mutable_graph()->set_size(static_cast<int64_t>(bytes.size()));
  made.with_graph = request.SerializeAsString();
  return made;
}

}  // namespace bucketd
