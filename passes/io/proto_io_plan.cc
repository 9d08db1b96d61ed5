#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "passes/pass/option_table.h"
#include "proto/costs.pb.h"
#include "proto/plan.pb.h"
#include "proto/planner.pb.h"

namespace bucketd {
namespace {

constexpr uint32_t kPlanFormatVersion = 1;
constexpr uint32_t kMaxWireInt = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxPlanBytes = size_t{256} << 20;
constexpr int kMaxMeshDims = 64;

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// ---- plans, out

void PredictionToProto(const Prediction& p, v1::Prediction& message) {
  message.set_total_ps(p.total_ps);
  message.set_exposed_ps(p.exposed_ps);
  message.set_compute_ps(p.compute_ps);
  message.set_comm_ps(p.comm_ps);
  message.set_copies_ps(p.copies_ps);
  message.set_peak_bytes(p.peak_bytes);
  message.set_collectives(static_cast<uint32_t>(p.collectives));
}

void BucketToProto(const Graph& graph, const Bucket& bucket, v1::Bucket& message) {
  for (const NodeId member : bucket.members) message.add_members(static_cast<uint32_t>(member));
  message.set_mode(static_cast<v1::BucketMode>(bucket.mode));
  message.set_copies(static_cast<v1::CopyStream>(bucket.copies));
  const Collective& c = graph.collective(graph.collective_of(bucket.members.front()));
  message.set_kind(static_cast<v1::CollectiveKind>(c.kind));
  message.set_mesh_dim(graph.group(c).mesh_dim);
  message.set_lane(static_cast<uint32_t>(graph.group(c).lane));
  message.set_group_size(static_cast<uint32_t>(graph.group(c).size));
  message.set_reduce_op(static_cast<v1::ReduceOp>(c.reduce_op));
  message.set_dtype(static_cast<v1::DType>(c.dtype));
  message.set_bytes(bucket.bytes);
  message.mutable_offsets()->Add(bucket.offsets.begin(), bucket.offsets.end());
  message.set_slice_bytes(bucket.slice_bytes);
  message.set_name(bucket.name);
  message.set_start_ps(bucket.start_ps);
  message.set_end_ps(bucket.end_ps);
}

void PlanToProto(const Graph& graph, const Plan& plan, v1::Plan& message) {
  message.set_format_version(kPlanFormatVersion);
  message.set_graph_digest(std::string(AsBytes(plan.graph_digest)));
  message.set_node_count(static_cast<uint32_t>(plan.node_count));
  for (const Bucket& bucket : plan.buckets) BucketToProto(graph, bucket, *message.add_buckets());
  message.mutable_order()->Reserve(static_cast<int>(plan.order.size()));
  for (const Step& step : plan.order) {
    message.add_order(uint64_t{4} * static_cast<uint64_t>(step.id) +
                      static_cast<uint64_t>(step.kind));
  }
  message.set_numerics(static_cast<v1::Numerics>(plan.numerics));
  message.set_backend(plan.backend);
  message.set_bits(static_cast<v1::Bits>(plan.bits));
  message.set_bits_text(plan.bits_text);
  PredictionToProto(plan.prediction, *message.mutable_prediction());
  PredictionToProto(plan.program_order, *message.mutable_program_order());
  message.set_lower_bound_ps(plan.lower_bound_ps);
  for (const Diagnostic& d : plan.diagnostics) {
    v1::Diagnostic& out = *message.add_diagnostics();
    out.set_code(d.code);
    out.set_text(d.text);
    for (const NodeId n : d.nodes) out.add_nodes(static_cast<uint32_t>(n));
  }
  message.mutable_provenance()->set_planner(plan.planner);
  message.mutable_provenance()->set_mode(plan.mode);
  message.mutable_provenance()->set_cost_profile(plan.cost_profile);
}

// ---- plans, in

// `value` of a proto enum as the core enum of the same values. Proto3 lets any number through.
template <typename Core, typename Wire>
absl::StatusOr<Core> EnumFrom(Wire value, bool (*is_valid)(int), const std::string& where) {
  if (static_cast<int>(value) == 0 || !is_valid(static_cast<int>(value))) {
    return Invalid(where, ": unknown value ", static_cast<int>(value));
  }
  return static_cast<Core>(value);
}

absl::Status CheckNode(uint32_t id, uint32_t node_count, const std::string& where) {
  if (id < node_count) return absl::OkStatus();
  return Invalid(where, ": node ", id, ", but the graph has ", node_count, " nodes");
}

absl::Status CheckNotNegative(int64_t value, const std::string& where) {
  if (value >= 0) return absl::OkStatus();
  return Invalid(where, ": is ", value, ", expected 0 or more");
}

absl::StatusOr<Bucket> BucketFromProto(const v1::Bucket& message, uint32_t node_count,
                                       const std::string& where) {
  Bucket bucket;
  if (message.members_size() < 2) {
    return Invalid(where, ".members: ", message.members_size(), " of them, expected two or more");
  }
  for (const uint32_t member : message.members()) {
    RETURN_IF_ERROR(CheckNode(member, node_count, where + ".members"));
    bucket.members.push_back(static_cast<NodeId>(member));
  }
  ASSIGN_OR_RETURN(bucket.mode,
                   EnumFrom<BucketMode>(message.mode(), v1::BucketMode_IsValid, where + ".mode"));
  ASSIGN_OR_RETURN(bucket.copies, EnumFrom<CopyStream>(message.copies(), v1::CopyStream_IsValid,
                                                       where + ".copies"));
  if (message.offsets_size() != 0 && message.offsets_size() != message.members_size()) {
    return Invalid(where, ".offsets: ", message.offsets_size(), " of them for ",
                   message.members_size(), " members");
  }
  for (const int64_t offset : message.offsets()) {
    RETURN_IF_ERROR(CheckNotNegative(offset, where + ".offsets"));
    bucket.offsets.push_back(offset);
  }
  RETURN_IF_ERROR(CheckNotNegative(message.slice_bytes(), where + ".slice_bytes"));
  RETURN_IF_ERROR(CheckNotNegative(message.bytes(), where + ".bytes"));
  RETURN_IF_ERROR(CheckNotNegative(message.start_ps(), where + ".start_ps"));
  RETURN_IF_ERROR(CheckNotNegative(message.end_ps(), where + ".end_ps"));
  bucket.slice_bytes = message.slice_bytes();
  bucket.bytes = message.bytes();
  bucket.start_ps = message.start_ps();
  bucket.end_ps = message.end_ps();
  bucket.name = message.name();
  return bucket;
}

absl::Status OrderFromProto(const v1::Plan& message, Plan& plan) {
  const uint64_t buckets = plan.buckets.size();
  if (static_cast<uint64_t>(message.order_size()) > message.node_count() + 2 * buckets) {
    return Invalid("order: ", message.order_size(), " steps for ", message.node_count(),
                   " nodes and ", buckets, " buckets");
  }
  plan.order.reserve(static_cast<size_t>(message.order_size()));
  for (int i = 0; i < message.order_size(); ++i) {
    const uint64_t kind = message.order(i) % 4;
    const uint64_t id = message.order(i) / 4;
    if (kind > 2 || id >= (kind == 0 ? uint64_t{message.node_count()} : buckets)) {
      return Invalid("order[", i, "]: value ", message.order(i), " names no node of ",
                     message.node_count(), " and no bucket of ", buckets);
    }
    plan.order.push_back({static_cast<Step::Kind>(kind), static_cast<int32_t>(id)});
  }
  return absl::OkStatus();
}

absl::Status PredictionFromProto(const v1::Prediction& message, const std::string& where,
                                 Prediction& p) {
  p.total_ps = message.total_ps();
  p.exposed_ps = message.exposed_ps();
  p.compute_ps = message.compute_ps();
  p.comm_ps = message.comm_ps();
  p.copies_ps = message.copies_ps();
  p.peak_bytes = message.peak_bytes();
  for (const int64_t figure :
       {p.total_ps, p.exposed_ps, p.compute_ps, p.comm_ps, p.copies_ps, p.peak_bytes}) {
    RETURN_IF_ERROR(CheckNotNegative(figure, where));
  }
  if (message.collectives() > kMaxWireInt) {
    return Invalid(where, ".collectives: ", message.collectives(), " of them");
  }
  p.collectives = static_cast<int32_t>(message.collectives());
  return absl::OkStatus();
}

absl::Status HeaderFromProto(const v1::Plan& message, Plan& plan) {
  if (message.format_version() != kPlanFormatVersion) {
    return Invalid("format_version: is ", message.format_version(), ", expected ",
                   kPlanFormatVersion);
  }
  const absl::StatusOr<Digest> digest = DigestFromBytes(message.graph_digest());
  if (!digest.ok()) return Invalid("graph_digest: ", digest.status().message());
  plan.graph_digest = *digest;
  if (message.node_count() == 0 || message.node_count() > kMaxWireInt) {
    return Invalid("node_count: is ", message.node_count(), ", expected 1 to ", kMaxWireInt);
  }
  plan.node_count = static_cast<int32_t>(message.node_count());
  ASSIGN_OR_RETURN(plan.numerics,
                   EnumFrom<Numerics>(message.numerics(), v1::Numerics_IsValid, "numerics"));
  plan.backend = message.backend();
  // Plans of planners before 7 do not say.
  if (message.bits() != v1::BITS_UNSPECIFIED) {
    ASSIGN_OR_RETURN(plan.bits, EnumFrom<Bits>(message.bits(), v1::Bits_IsValid, "bits"));
  }
  plan.bits_text = message.bits_text();
  plan.planner = message.provenance().planner();
  plan.mode = message.provenance().mode();
  plan.cost_profile = message.provenance().cost_profile();
  return absl::OkStatus();
}

absl::StatusOr<Plan> ReadPlan(const v1::Plan& message) {
  Plan plan;
  RETURN_IF_ERROR(HeaderFromProto(message, plan));
  for (int k = 0; k < message.buckets_size(); ++k) {
    ASSIGN_OR_RETURN(Bucket bucket, BucketFromProto(message.buckets(k), message.node_count(),
                                                    absl::StrCat("buckets[", k, "]")));
    plan.buckets.push_back(std::move(bucket));
  }
  RETURN_IF_ERROR(OrderFromProto(message, plan));
  RETURN_IF_ERROR(PredictionFromProto(message.prediction(), "prediction", plan.prediction));
  RETURN_IF_ERROR(
      PredictionFromProto(message.program_order(), "program_order", plan.program_order));
  RETURN_IF_ERROR(CheckNotNegative(message.lower_bound_ps(), "lower_bound_ps"));
  plan.lower_bound_ps = message.lower_bound_ps();
  for (int i = 0; i < message.diagnostics_size(); ++i) {
    const v1::Diagnostic& d = message.diagnostics(i);
    Diagnostic out{d.code(), d.text(), {}};
    for (const uint32_t n : d.nodes()) {
      RETURN_IF_ERROR(
          CheckNode(n, message.node_count(), absl::StrCat("diagnostics[", i, "].nodes")));
      out.nodes.push_back(static_cast<NodeId>(n));
    }
    plan.diagnostics.push_back(std::move(out));
  }
  return plan;
}

// ---- options and mesh

absl::Status DistanceFromProto(bool is_set, uint32_t wire, const char* where, int32_t& value) {
  if (!is_set) return absl::OkStatus();
  if (wire > kMaxWireInt) return Invalid(where, ": is ", wire, ", expected less than 2^31");
  value = static_cast<int32_t>(wire);
  return absl::OkStatus();
}

absl::StatusOr<MeshDim> MeshDimFromProto(const v1::MeshDim& message) {
  if (message.name().empty()) return Invalid("mesh: a dimension has no name");
  if (message.size() == 0 || message.size() > kMaxWireInt) {
    return Invalid("mesh: dimension ", message.name(), " has ", message.size(),
                   " ranks, expected 1 to ", kMaxWireInt);
  }
  if (message.ranks_per_node() > message.size()) {
    return Invalid("mesh: dimension ", message.name(), " has ", message.ranks_per_node(),
                   " ranks a node, but only ", message.size(), " in all");
  }
  return MeshDim{message.name(), static_cast<int32_t>(message.size()),
                 static_cast<int32_t>(message.ranks_per_node()), message.link_class()};
}

absl::Status SettingsFromProto(const v1::PlanOptions& message, PlanOptions& options) {
  absl::flat_hash_set<std::string> seen;
  for (const v1::OptionSetting& setting : message.settings()) {
    const OptionInfo* option = FindOption(setting.name());
    if (option != nullptr && option->has_field) {
      return Invalid("options: ", setting.name(), " has a field of its own");
    }
    if (!seen.insert(setting.name()).second) {
      return Invalid("options: ", setting.name(), " is given twice");
    }
    const absl::Status status = SetOption(options, setting.name(), setting.value());
    if (!status.ok()) return Invalid("options: ", status.message());
  }
  return absl::OkStatus();
}

}  // namespace

std::string SerializePlan(const Graph& graph, const Plan& plan) {
  v1::Plan message;
  PlanToProto(graph, plan, message);
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    // The schema has no maps, so this is the order of field numbers; asked for all the same.
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

absl::StatusOr<Plan> PlanFromProto(const v1::Plan& message) {
  absl::StatusOr<Plan> plan = ReadPlan(message);
  if (plan.ok()) return plan;
  return Invalid("plan: ", plan.status().message());
}

absl::StatusOr<Plan> ParsePlan(absl::string_view serialized) {
  if (serialized.size() > kMaxPlanBytes) {
    return Invalid("plan: ", serialized.size(), " bytes, expected at most ", kMaxPlanBytes);
  }
  v1::Plan message;
  if (!message.ParseFromArray(serialized.data(), static_cast<int>(serialized.size()))) {
    return Invalid("plan: ", serialized.size(), " bytes that are no serialised bucketd.v1.Plan");
  }
  return PlanFromProto(message);
}

absl::StatusOr<Mesh> MeshFromProto(const v1::Mesh& message) {
  if (message.dims_size() > kMaxMeshDims) {
    return Invalid("mesh: ", message.dims_size(), " dimensions, expected at most ", kMaxMeshDims);
  }
  Mesh mesh;
  absl::flat_hash_set<std::string> names;
  for (const v1::MeshDim& dim : message.dims()) {
    ASSIGN_OR_RETURN(MeshDim core, MeshDimFromProto(dim));
    if (!names.insert(core.name).second) {
      return Invalid("mesh: two dimensions are called ", core.name);
    }
    mesh.dims.push_back(std::move(core));
  }
  if (!message.device_type().empty()) mesh.device_type = message.device_type();
  if (mesh.device_type != "cuda" && mesh.device_type != "cpu") {
    return Invalid("mesh: device type ", mesh.device_type, ", expected one of: cuda, cpu");
  }
  return mesh;
}

void MeshToProto(const Mesh& mesh, v1::Mesh& message) {
  message.set_device_type(mesh.device_type);
  for (const MeshDim& dim : mesh.dims) {
    v1::MeshDim& d = *message.add_dims();
    d.set_name(dim.name);
    d.set_size(static_cast<uint32_t>(dim.size));
    d.set_ranks_per_node(static_cast<uint32_t>(dim.ranks_per_node));
    d.set_link_class(dim.link_class);
  }
}

absl::StatusOr<PlanOptions> OptionsFromProto(const v1::PlanOptions& message, const Mesh& mesh) {
  PlanOptions options;
  if (!message.mode().empty()) options.mode = message.mode();
  if (message.numerics() != v1::NUMERICS_UNSPECIFIED) {
    ASSIGN_OR_RETURN(options.numerics, EnumFrom<Numerics>(message.numerics(), v1::Numerics_IsValid,
                                                          "options: numerics"));
  }
  options.backend = mesh.device_type == "cpu" ? "gloo" : "nccl";
  if (!message.backend().empty()) options.backend = message.backend();
  if (message.memory_limit_ppm() != 0) options.memory_limit_ppm = message.memory_limit_ppm();
  options.memory_limit_bytes = message.memory_limit_bytes();
  options.buckets = message.buckets();
  RETURN_IF_ERROR(DistanceFromProto(message.has_prefetch_forward(), message.prefetch_forward(),
                                    "options: prefetch_forward", options.prefetch_forward));
  RETURN_IF_ERROR(DistanceFromProto(message.has_prefetch_backward(), message.prefetch_backward(),
                                    "options: prefetch_backward", options.prefetch_backward));
  RETURN_IF_ERROR(DistanceFromProto(message.has_defer_reduce_scatter(),
                                    message.defer_reduce_scatter(), "options: defer_reduce_scatter",
                                    options.defer_reduce_scatter));
  if (!message.reorder().empty()) options.reorder = message.reorder();
  options.parameter_order.assign(message.parameter_order().begin(),
                                 message.parameter_order().end());
  options.strict_coverage = message.strict_coverage();
  RETURN_IF_ERROR(SettingsFromProto(message, options));
  RETURN_IF_ERROR(options.Validate());
  return options;
}

void OptionsToProto(const PlanOptions& options, v1::PlanOptions& message) {
  message.set_mode(options.mode);
  message.set_numerics(static_cast<v1::Numerics>(options.numerics));
  message.set_backend(options.backend);
  message.set_memory_limit_ppm(options.memory_limit_ppm);
  message.set_memory_limit_bytes(options.memory_limit_bytes);
  message.set_buckets(options.buckets);
  message.set_prefetch_forward(static_cast<uint32_t>(options.prefetch_forward));
  message.set_prefetch_backward(static_cast<uint32_t>(options.prefetch_backward));
  message.set_defer_reduce_scatter(static_cast<uint32_t>(options.defer_reduce_scatter));
  message.set_reorder(options.reorder);
  for (const std::string& name : options.parameter_order) message.add_parameter_order(name);
  message.set_strict_coverage(options.strict_coverage);
  const PlanOptions defaults;
  for (const OptionInfo& option : AllOptions()) {
    std::string value = option.print(options);
    if (option.has_field || value == option.print(defaults)) continue;
    v1::OptionSetting* setting = message.add_settings();
    setting->set_name(std::string(option.name));
    setting->set_value(std::move(value));
  }
}

}  // namespace bucketd
