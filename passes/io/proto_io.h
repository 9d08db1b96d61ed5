// The bridge between wire messages and core types. Everything that comes in is untrusted:
// INVALID_ARGUMENT names the place.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/cost_report.h"
#include "passes/cost/costs.h"
#include "passes/cost/profile.h"
#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"
#include "passes/pass/options.h"
#include "passes/plan/plan.h"

namespace bucketd::v1 {
class CollectiveSample;
class CostProfile;
class Graph;
class Mesh;
class Plan;
class PlanOptions;
}  // namespace bucketd::v1

namespace bucketd {

void GraphToProto(const Graph& graph, v1::Graph& message);
// Parses and converts node by node: beside the graph it holds a view a node, a string and a name.
absl::StatusOr<Graph> GraphFromBytes(absl::string_view serialized, const GraphLimits& limits = {});

// The plan's bytes: what is hashed, cached, sent and compared between ranks. Deterministic.
std::string SerializePlan(const Graph& graph, const Plan& plan);
// Refers to `graph` for nothing but its size; call VerifyPlan for the rest.
absl::StatusOr<Plan> PlanFromProto(const v1::Plan& message);
absl::StatusOr<Plan> ParsePlan(absl::string_view serialized);

absl::StatusOr<Mesh> MeshFromProto(const v1::Mesh& message);
void MeshToProto(const Mesh& mesh, v1::Mesh& message);
// Fills defaults (0 and "" mean: the default), then Validate()s.
absl::StatusOr<PlanOptions> OptionsFromProto(const v1::PlanOptions& message, const Mesh& mesh);
void OptionsToProto(const PlanOptions& options, v1::PlanOptions& message);
absl::StatusOr<CostProfile> ProfileFromProto(const v1::CostProfile& message);
void ProfileToProto(const CostProfile& profile, v1::CostProfile& message);
// Validate()d; ranks_per_node is filled in.
absl::StatusOr<CollectiveSample> SampleFromProto(const v1::CollectiveSample& message);
void SampleToProto(const CollectiveSample& sample, v1::CollectiveSample& message);

}  // namespace bucketd
