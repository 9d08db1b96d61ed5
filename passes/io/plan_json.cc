#include "passes/io/plan_json.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "passes/base/status_macros.h"
#include "passes/io/json_text.h"

namespace bucketd {
namespace {

using internal::AsInteger;
using internal::AsString;
using internal::Find;
using internal::Quoted;
using internal::WrongType;
using nlohmann::json;

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

// ---- writing

std::string PredictionText(const Prediction& p) {
  return absl::StrCat("{\"total_ps\": ", p.total_ps, ", \"exposed_ps\": ", p.exposed_ps,
                      ", \"compute_ps\": ", p.compute_ps, ", \"comm_ps\": ", p.comm_ps,
                      ", \"copies_ps\": ", p.copies_ps,
                      ", \"busiest_group_ps\": ", p.busiest_group_ps,
                      ", \"peak_bytes\": ", p.peak_bytes,
                      ", \"peak_at\": ", p.peak_at == kNoNode ? "null" : absl::StrCat(p.peak_at),
                      ", \"collectives\": ", p.collectives, "}");
}

std::string BucketText(const Graph& graph, const Bucket& bucket) {
  const Collective& c = graph.collective(graph.collective_of(bucket.members.front()));
  return absl::StrCat(
      "{\"members\": [", absl::StrJoin(bucket.members, ", "),
      "], \"mode\": ", Quoted(Name(bucket.mode)), ", \"copies\": ", Quoted(Name(bucket.copies)),
      ", \"name\": ", Quoted(bucket.name), ", \"kind\": ", Quoted(Name(c.kind)),
      ", \"mesh_dim\": ", Quoted(graph.group(c).mesh_dim), ", \"lane\": ", graph.group(c).lane,
      ", \"group_size\": ", graph.group(c).size, ", \"reduce_op\": ", Quoted(Name(c.reduce_op)),
      ", \"dtype\": ", Quoted(Name(c.dtype)), ", \"bytes\": ", bucket.bytes, ", \"offsets\": [",
      absl::StrJoin(bucket.offsets, ", "), "], \"slice_bytes\": ", bucket.slice_bytes,
      ", \"start_ps\": ", bucket.start_ps, ", \"end_ps\": ", bucket.end_ps, "}");
}

std::string StepText(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kStart:
      return absl::StrCat("\"start:", step.id, "\"");
    case Step::Kind::kWait:
      return absl::StrCat("\"wait:", step.id, "\"");
    case Step::Kind::kNode:
      break;
  }
  return absl::StrCat(step.id);
}

std::string DiagnosticText(const Diagnostic& d) {
  return absl::StrCat("{\"code\": ", Quoted(d.code), ", \"text\": ", Quoted(d.text),
                      ", \"nodes\": [", absl::StrJoin(d.nodes, ", "), "]}");
}

template <typename Items, typename Format>
std::string Lines(const Items& items, Format format) {
  if (items.empty()) return "[]";
  return absl::StrCat("[\n  ",
                      absl::StrJoin(items, ",\n  ",
                                    [&](std::string* out, const auto& item) {
                                      absl::StrAppend(out, format(item));
                                    }),
                      "]");
}

// ---- reading

absl::StatusOr<const json*> AsArray(const json& object, const char* key, bool required,
                                    absl::string_view where) {
  const json* value = Find(object, key);
  if (value == nullptr) {
    if (!required) return nullptr;
    return absl::InvalidArgumentError(absl::StrCat(where, ": missing, expected an array"));
  }
  if (!value->is_array()) return WrongType(where, "an array", *value);
  return value;
}

template <typename T>
absl::StatusOr<std::vector<T>> Integers(const json& object, const char* key, bool required,
                                        absl::string_view where, int64_t high) {
  const std::string place = absl::StrCat(where, key);
  ASSIGN_OR_RETURN(const json* array, AsArray(object, key, required, place));
  std::vector<T> values;
  if (array == nullptr) return values;
  values.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t value,
                     AsInteger((*array)[i], absl::StrCat(place, "[", i, "]"), 0, high));
    values.push_back(static_cast<T>(value));
  }
  return values;
}

absl::Status ReadInteger(const json& object, const char* key, absl::string_view where, int64_t high,
                         int64_t& value) {
  const json* found = Find(object, key);
  if (found == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(value, AsInteger(*found, absl::StrCat(where, key), 0, high));
  return absl::OkStatus();
}

absl::Status ReadString(const json& object, const char* key, absl::string_view where,
                        std::string& value) {
  const json* found = Find(object, key);
  if (found == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(value, AsString(*found, absl::StrCat(where, key)));
  return absl::OkStatus();
}

// Sets `value` to the one of `known` that the field names; leaves it if there is no field.
template <typename E>
absl::Status ReadName(const json& object, const char* key, absl::string_view where,
                      std::initializer_list<E> known, E& value) {
  std::string text;
  if (Find(object, key) == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(ReadString(object, key, where, text));
  for (const E candidate : known) {
    if (Name(candidate) == text) {
      value = candidate;
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      where, key, ": is ", Quoted(text), ", expected one of: ",
      absl::StrJoin(known, ", ", [](std::string* out, E e) { absl::StrAppend(out, Name(e)); })));
}

absl::StatusOr<Bucket> ReadBucket(const json& object, const std::string& where) {
  if (!object.is_object()) return WrongType(where, "an object", object);
  const std::string prefix = where + ".";
  Bucket bucket;
  ASSIGN_OR_RETURN(bucket.members, Integers<NodeId>(object, "members", true, prefix, kMaxId));
  RETURN_IF_ERROR(
      ReadName(object, "mode", prefix, {BucketMode::kPacked, BucketMode::kGrouped}, bucket.mode));
  RETURN_IF_ERROR(
      ReadName(object, "copies", prefix, {CopyStream::kCompute, CopyStream::kComm}, bucket.copies));
  RETURN_IF_ERROR(ReadString(object, "name", prefix, bucket.name));
  ASSIGN_OR_RETURN(bucket.offsets, Integers<int64_t>(object, "offsets", false, prefix, kMaxInt));
  RETURN_IF_ERROR(ReadInteger(object, "slice_bytes", prefix, kMaxInt, bucket.slice_bytes));
  RETURN_IF_ERROR(ReadInteger(object, "bytes", prefix, kMaxInt, bucket.bytes));
  RETURN_IF_ERROR(ReadInteger(object, "start_ps", prefix, kMaxInt, bucket.start_ps));
  RETURN_IF_ERROR(ReadInteger(object, "end_ps", prefix, kMaxInt, bucket.end_ps));
  return bucket;
}

absl::StatusOr<Step> ReadStep(const json& value, size_t i, size_t buckets) {
  const std::string where = absl::StrCat("order[", i, "]");
  if (value.is_number_integer()) {
    ASSIGN_OR_RETURN(const int64_t id, AsInteger(value, where, 0, kMaxId));
    return Step{Step::Kind::kNode, static_cast<int32_t>(id)};
  }
  constexpr absl::string_view kExpected = "a node id, \"start:K\" or \"wait:K\"";
  if (!value.is_string()) return WrongType(where, kExpected, value);
  const std::string& token = value.get_ref<const std::string&>();
  absl::string_view digits = token;
  Step step{Step::Kind::kStart, 0};
  if (absl::ConsumePrefix(&digits, "wait:")) {
    step.kind = Step::Kind::kWait;
  } else if (!absl::ConsumePrefix(&digits, "start:")) {
    digits = "";
  }
  // One spelling a bucket: no sign, no leading zero, no blanks.
  if (absl::SimpleAtoi(digits, &step.id) && absl::StrCat(step.id) == digits && step.id >= 0) {
    if (static_cast<size_t>(step.id) < buckets) return step;
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": is ", Quoted(token), ", but there are ", buckets, " buckets"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": is ", Quoted(token), ", expected ", kExpected));
}

absl::Status ReadPrediction(const json& object, const char* key, Prediction& p) {
  const json* found = Find(object, key);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_object()) return WrongType(key, "an object", *found);
  const std::string where = absl::StrCat(key, ".");
  RETURN_IF_ERROR(ReadInteger(*found, "total_ps", where, kMaxInt, p.total_ps));
  RETURN_IF_ERROR(ReadInteger(*found, "exposed_ps", where, kMaxInt, p.exposed_ps));
  RETURN_IF_ERROR(ReadInteger(*found, "compute_ps", where, kMaxInt, p.compute_ps));
  RETURN_IF_ERROR(ReadInteger(*found, "comm_ps", where, kMaxInt, p.comm_ps));
  RETURN_IF_ERROR(ReadInteger(*found, "copies_ps", where, kMaxInt, p.copies_ps));
  RETURN_IF_ERROR(ReadInteger(*found, "busiest_group_ps", where, kMaxInt, p.busiest_group_ps));
  RETURN_IF_ERROR(ReadInteger(*found, "peak_bytes", where, kMaxInt, p.peak_bytes));
  int64_t collectives = 0;
  RETURN_IF_ERROR(ReadInteger(*found, "collectives", where, kMaxId, collectives));
  p.collectives = static_cast<int32_t>(collectives);
  const json* peak_at = Find(*found, "peak_at");
  if (peak_at != nullptr && !peak_at->is_null()) {
    ASSIGN_OR_RETURN(const int64_t node,
                     AsInteger(*peak_at, absl::StrCat(where, "peak_at"), 0, kMaxId));
    p.peak_at = static_cast<NodeId>(node);
  }
  return absl::OkStatus();
}

absl::Status ReadDiagnostics(const json& object, Plan& plan) {
  ASSIGN_OR_RETURN(const json* array, AsArray(object, "diagnostics", false, "diagnostics"));
  for (size_t i = 0; array != nullptr && i < array->size(); ++i) {
    const json& item = (*array)[i];
    const std::string where = absl::StrCat("diagnostics[", i, "]");
    if (!item.is_object()) return WrongType(where, "an object", item);
    Diagnostic d;
    RETURN_IF_ERROR(ReadString(item, "code", where + ".", d.code));
    RETURN_IF_ERROR(ReadString(item, "text", where + ".", d.text));
    ASSIGN_OR_RETURN(d.nodes, Integers<NodeId>(item, "nodes", false, where + ".", kMaxId));
    plan.diagnostics.push_back(std::move(d));
  }
  return absl::OkStatus();
}

absl::Status ReadHeader(const json& object, Plan& plan) {
  int64_t version = 1;
  RETURN_IF_ERROR(ReadInteger(object, "format_version", "", kMaxInt, version));
  if (version != 1) {
    return absl::InvalidArgumentError(absl::StrCat("format_version: is ", version, ", expected 1"));
  }
  std::string hex;
  RETURN_IF_ERROR(ReadString(object, "graph", "", hex));
  if (!hex.empty()) {
    const absl::StatusOr<Digest> digest = DigestFromHex(hex);
    if (!digest.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("graph: ", digest.status().message()));
    }
    plan.graph_digest = *digest;
  }
  int64_t node_count = 0;
  RETURN_IF_ERROR(ReadInteger(object, "node_count", "", kMaxId, node_count));
  plan.node_count = static_cast<int32_t>(node_count);
  RETURN_IF_ERROR(ReadString(object, "mode", "", plan.mode));
  RETURN_IF_ERROR(ReadString(object, "planner", "", plan.planner));
  RETURN_IF_ERROR(ReadString(object, "cost_profile", "", plan.cost_profile));
  RETURN_IF_ERROR(ReadString(object, "backend", "", plan.backend));
  RETURN_IF_ERROR(ReadString(object, "bits_text", "", plan.bits_text));
  RETURN_IF_ERROR(ReadName(
      object, "bits", "",
      {Bits::kUnsaid, Bits::kNeither, Bits::kEager, Bits::kUnplanned, Bits::kBoth}, plan.bits));
  return ReadName(object, "numerics", "",
                  {Numerics::kEagerOrder, Numerics::kExact, Numerics::kFree}, plan.numerics);
}

absl::StatusOr<Plan> ReadPlan(const json& object) {
  Plan plan;
  RETURN_IF_ERROR(ReadHeader(object, plan));
  ASSIGN_OR_RETURN(const json* buckets, AsArray(object, "buckets", false, "buckets"));
  for (size_t k = 0; buckets != nullptr && k < buckets->size(); ++k) {
    ASSIGN_OR_RETURN(Bucket bucket, ReadBucket((*buckets)[k], absl::StrCat("buckets[", k, "]")));
    plan.buckets.push_back(std::move(bucket));
  }
  ASSIGN_OR_RETURN(const json* order, AsArray(object, "order", true, "order"));
  plan.order.reserve(order->size());
  for (size_t i = 0; i < order->size(); ++i) {
    ASSIGN_OR_RETURN(const Step step, ReadStep((*order)[i], i, plan.buckets.size()));
    plan.order.push_back(step);
  }
  RETURN_IF_ERROR(ReadPrediction(object, "prediction", plan.prediction));
  RETURN_IF_ERROR(ReadPrediction(object, "program_order", plan.program_order));
  RETURN_IF_ERROR(ReadInteger(object, "lower_bound_ps", "", kMaxInt, plan.lower_bound_ps));
  RETURN_IF_ERROR(ReadDiagnostics(object, plan));
  return plan;
}

}  // namespace

std::string PlanToJson(const Graph& graph, const Plan& plan) {
  std::string order = absl::StrJoin(plan.order, ", ", [](std::string* out, const Step& step) {
    absl::StrAppend(out, StepText(step));
  });
  return absl::StrCat(
      "{\"format_version\": 1,\n \"graph\": ", Quoted(ToHex(plan.graph_digest)),
      ",\n \"node_count\": ", plan.node_count, ",\n \"mode\": ", Quoted(plan.mode),
      ", \"planner\": ", Quoted(plan.planner), ", \"cost_profile\": ", Quoted(plan.cost_profile),
      ",\n \"numerics\": ", Quoted(Name(plan.numerics)), ", \"backend\": ", Quoted(plan.backend),
      ",\n \"bits\": ", Quoted(Name(plan.bits)), ", \"bits_text\": ", Quoted(plan.bits_text),
      ",\n \"buckets\": ",
      Lines(plan.buckets, [&](const Bucket& b) { return BucketText(graph, b); }),
      ",\n \"order\": [", order, "],\n \"prediction\": ", PredictionText(plan.prediction),
      ",\n \"program_order\": ", PredictionText(plan.program_order),
      ",\n \"lower_bound_ps\": ", plan.lower_bound_ps,
      ",\n \"diagnostics\": ", Lines(plan.diagnostics, DiagnosticText), "}\n");
}

absl::StatusOr<Plan> PlanFromJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const json object, internal::ParseObject(text, "plan"));
  const absl::StatusOr<Plan> plan = ReadPlan(object);
  if (plan.ok()) return plan;
  return absl::InvalidArgumentError(absl::StrCat("plan: ", plan.status().message()));
}

}  // namespace bucketd
