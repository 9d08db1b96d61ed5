#include "passes/io/plan_json.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "passes/base/status_macros.h"
#include "passes/io/json_fields.h"

namespace bucketd {
namespace {

using internal::AsInteger;
using internal::Members;
using internal::Quoted;
using internal::WrongType;
using nlohmann::json;

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

constexpr std::pair<const char*, int64_t Prediction::*> kFigures[] = {
    {"total_ps", &Prediction::total_ps},     {"exposed_ps", &Prediction::exposed_ps},
    {"compute_ps", &Prediction::compute_ps}, {"comm_ps", &Prediction::comm_ps},
    {"copies_ps", &Prediction::copies_ps},   {"busiest_group_ps", &Prediction::busiest_group_ps},
    {"peak_bytes", &Prediction::peak_bytes}};

// ---- writing

std::string PredictionText(const Prediction& p) {
  std::string text = "{";
  for (const auto& [name, figure] : kFigures) {
    absl::StrAppend(&text, "\"", name, "\": ", p.*figure, ", ");
  }
  return absl::StrCat(text,
                      "\"peak_at\": ", p.peak_at == kNoNode ? "null" : absl::StrCat(p.peak_at),
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

absl::StatusOr<const json*> AsArray(const Members& members, const char* key, bool required) {
  const json* value = members.Find(key);
  if (value == nullptr) {
    if (!required) return nullptr;
    return absl::InvalidArgumentError(
        absl::StrCat(members.Place(key), ": missing, expected an array"));
  }
  if (!value->is_array()) return WrongType(members.Place(key), "an array", *value);
  return value;
}

template <typename T>
absl::StatusOr<std::vector<T>> Integers(const Members& members, const char* key, bool required) {
  ASSIGN_OR_RETURN(const json* array, AsArray(members, key, required));
  std::vector<T> values;
  if (array == nullptr) return values;
  values.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t value,
                     AsInteger((*array)[i], absl::StrCat(members.Place(key), "[", i, "]"), 0,
                               std::numeric_limits<T>::max()));
    values.push_back(static_cast<T>(value));
  }
  return values;
}

// Sets `value` to what the field names; leaves it if there is no field.
template <typename Enum>
absl::Status ReadName(const Members& members, const char* key, Enum& value) {
  std::string text;
  if (members.Find(key) == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(members.Text(key, true, text));
  if (FromName(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(members.Place(key), ": is ", Quoted(text),
                   ", expected one of: ", absl::StrJoin(NamesOf<Enum>(), ", ")));
}

absl::StatusOr<Bucket> ReadBucket(const json& object, const std::string& where) {
  if (!object.is_object()) return WrongType(where, "an object", object);
  const Members members(object, where);
  Bucket bucket;
  ASSIGN_OR_RETURN(bucket.members, Integers<NodeId>(members, "members", true));
  RETURN_IF_ERROR(ReadName(members, "mode", bucket.mode));
  RETURN_IF_ERROR(ReadName(members, "copies", bucket.copies));
  RETURN_IF_ERROR(members.Text("name", false, bucket.name));
  ASSIGN_OR_RETURN(bucket.offsets, Integers<int64_t>(members, "offsets", false));
  RETURN_IF_ERROR(members.Integer("slice_bytes", false, bucket.slice_bytes));
  RETURN_IF_ERROR(members.Integer("bytes", false, bucket.bytes));
  RETURN_IF_ERROR(members.Integer("start_ps", false, bucket.start_ps));
  RETURN_IF_ERROR(members.Integer("end_ps", false, bucket.end_ps));
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

absl::Status ReadPrediction(const Members& plan, const char* key, Prediction& p) {
  const json* found = plan.Find(key);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_object()) return WrongType(key, "an object", *found);
  const Members members(*found, key);
  for (const auto& [name, figure] : kFigures) {
    RETURN_IF_ERROR(members.Integer(name, false, p.*figure));
  }
  RETURN_IF_ERROR(members.Integer("collectives", false, p.collectives));
  const json* peak_at = members.Find("peak_at");
  const bool is_null = peak_at != nullptr && peak_at->is_null();
  return is_null ? absl::OkStatus() : members.Integer("peak_at", false, p.peak_at);
}

absl::Status ReadDiagnostics(const Members& object, Plan& plan) {
  ASSIGN_OR_RETURN(const json* array, AsArray(object, "diagnostics", false));
  for (size_t i = 0; array != nullptr && i < array->size(); ++i) {
    const json& item = (*array)[i];
    const std::string where = absl::StrCat("diagnostics[", i, "]");
    if (!item.is_object()) return WrongType(where, "an object", item);
    const Members members(item, where);
    Diagnostic d;
    RETURN_IF_ERROR(members.Text("code", false, d.code));
    RETURN_IF_ERROR(members.Text("text", false, d.text));
    ASSIGN_OR_RETURN(d.nodes, Integers<NodeId>(members, "nodes", false));
    plan.diagnostics.push_back(std::move(d));
  }
  return absl::OkStatus();
}

absl::Status ReadHeader(const Members& members, Plan& plan) {
  int64_t version = 1;
  RETURN_IF_ERROR(members.Integer("format_version", false, version));
  if (version != 1) {
    return absl::InvalidArgumentError(absl::StrCat("format_version: is ", version, ", expected 1"));
  }
  std::string hex;
  RETURN_IF_ERROR(members.Text("graph", false, hex));
  if (!hex.empty()) {
    const absl::StatusOr<Digest> digest = DigestFromHex(hex);
    if (!digest.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("graph: ", digest.status().message()));
    }
    plan.graph_digest = *digest;
  }
  RETURN_IF_ERROR(members.Integer("node_count", false, plan.node_count));
  RETURN_IF_ERROR(members.Text("mode", false, plan.mode));
  RETURN_IF_ERROR(members.Text("planner", false, plan.planner));
  RETURN_IF_ERROR(members.Text("cost_profile", false, plan.cost_profile));
  RETURN_IF_ERROR(members.Text("backend", false, plan.backend));
  RETURN_IF_ERROR(members.Text("bits_text", false, plan.bits_text));
  RETURN_IF_ERROR(ReadName(members, "bits", plan.bits));
  return ReadName(members, "numerics", plan.numerics);
}

absl::StatusOr<Plan> ReadPlan(const json& object) {
  const Members members(object, "");
  Plan plan;
  RETURN_IF_ERROR(ReadHeader(members, plan));
  ASSIGN_OR_RETURN(const json* buckets, AsArray(members, "buckets", false));
  for (size_t k = 0; buckets != nullptr && k < buckets->size(); ++k) {
    ASSIGN_OR_RETURN(Bucket bucket, ReadBucket((*buckets)[k], absl::StrCat("buckets[", k, "]")));
    plan.buckets.push_back(std::move(bucket));
  }
  ASSIGN_OR_RETURN(const json* order, AsArray(members, "order", true));
  plan.order.reserve(order->size());
  for (size_t i = 0; i < order->size(); ++i) {
    ASSIGN_OR_RETURN(const Step step, ReadStep((*order)[i], i, plan.buckets.size()));
    plan.order.push_back(step);
  }
  RETURN_IF_ERROR(ReadPrediction(members, "prediction", plan.prediction));
  RETURN_IF_ERROR(ReadPrediction(members, "program_order", plan.program_order));
  RETURN_IF_ERROR(members.Integer("lower_bound_ps", false, plan.lower_bound_ps));
  RETURN_IF_ERROR(ReadDiagnostics(members, plan));
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
