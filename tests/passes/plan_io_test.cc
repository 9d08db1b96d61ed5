// Plans as files and as wire messages: what is written is read back, what is damaged is refused.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/io/plan_file.h"
#include "passes/io/plan_json.h"
#include "passes/io/proto_io.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "proto/planner.pb.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;

struct Planned {
  Graph graph;
  Plan plan;
};

Planned Example() {
  Graph graph = bucketd::testing::Backward(3, 2);
  absl::StatusOr<Plan> plan =
      MakePlan(graph, bucketd::testing::CostsOf(graph), bucketd::testing::TransformerBlock());
  EXPECT_TRUE(plan.ok()) << plan.status();
  plan->graph_digest = Sha256("a graph");
  plan->diagnostics.push_back({"some-code", "a \"quoted\" text\nof two lines", {0, 1}});
  EXPECT_GE(plan->buckets.size(), 2U);
  return {std::move(graph), *std::move(plan)};
}

TEST(PlanJson, IsReadBackAsItWasWritten) {
  const Planned p = Example();
  const std::string text = PlanToJson(p.graph, p.plan);
  const absl::StatusOr<Plan> read = PlanFromJson(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(PlanToJson(p.graph, *read), text);
  EXPECT_EQ(read->order, p.plan.order);
  EXPECT_EQ(read->prediction.busiest_group_ps, p.plan.prediction.busiest_group_ps);
  EXPECT_EQ(read->diagnostics.back().text, p.plan.diagnostics.back().text);
  EXPECT_TRUE(VerifyPlan(p.graph, *read).ok());
}

TEST(PlanProto, IsReadBackAsItWasWritten) {
  const Planned p = Example();
  const std::string bytes = SerializePlan(p.graph, p.plan);
  const absl::StatusOr<Plan> read = ParsePlan(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(SerializePlan(p.graph, *read), bytes);
  EXPECT_EQ(read->order, p.plan.order);
  EXPECT_EQ(read->lower_bound_ps, p.plan.lower_bound_ps);
  EXPECT_EQ(read->mode, p.plan.mode);
  EXPECT_TRUE(VerifyPlan(p.graph, *read).ok());
}

TEST(PlanFile, KnowsBothForms) {
  const Planned p = Example();
  for (const std::string& bytes : {PlanToJson(p.graph, p.plan), SerializePlan(p.graph, p.plan)}) {
    const absl::StatusOr<PlanFile> file = ReadPlan(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->plan.order, p.plan.order);
    ASSERT_EQ(file->stated.size(), p.plan.buckets.size());
    const Collective& c = p.graph.collective(p.graph.collective_of(p.plan.buckets[0].members[0]));
    EXPECT_EQ(file->stated[0].kind, Name(c.kind));
    EXPECT_EQ(file->stated[0].mesh_dim, p.graph.group(c).mesh_dim);
  }
}

TEST(PlanJson, NeedsNoMoreThanTheRefereeReads) {
  const absl::StatusOr<Plan> plan =
      PlanFromJson(R"({"buckets": [{"members": [3, 4]}], "order": [0, "start:0", "wait:0"]})");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->buckets[0].mode, BucketMode::kPacked);
  EXPECT_EQ(plan->buckets[0].copies, CopyStream::kCompute);
  EXPECT_EQ(plan->order.size(), 3U);
}

TEST(PlanJson, NamesTheFieldThatIsWrong) {
  struct Case {
    const char* json;
    const char* says;
  };
  for (const Case& c : {
           Case{"", "not JSON"},
           Case{"[1]", "expected an object"},
           Case{"{}", "order: missing"},
           Case{R"({"order": 3})", "order: expected an array"},
           Case{R"({"order": [1.0]})", "order[0]: expected"},
           Case{R"({"order": [true]})", "order[0]: expected"},
           Case{R"({"order": [-1]})", "order[0]: is -1"},
           Case{R"({"order": [99999999999]})", "order[0]: is 99999999999"},
           Case{R"({"order": [18446744073709551615]})", "order[0]: is 18446744073709551615"},
           Case{R"({"order": ["start:01"]})", "start:01"},
           Case{R"({"order": ["start:-1"]})", "start:-1"},
           Case{R"({"order": ["start: 1"]})", "start: 1"},
           Case{R"({"order": ["stop:1"]})", "stop:1"},
           Case{R"({"order": ["start:0"]})", "order[0]: is \"start:0\", but there are 0 buckets"},
           Case{R"({"order": [3, "wait:1"], "buckets": [{"members": [1, 2]}]})",
                "order[1]: is \"wait:1\", but there are 1 buckets"},
           Case{R"({"order": [], "format_version": 2})", "format_version: is 2"},
           Case{R"({"order": [], "graph": "beef"})", "graph: "},
           Case{R"({"order": [], "numerics": "sloppy"})", "eager_order, exact, free"},
           Case{R"({"order": [], "buckets": [3]})", "buckets[0]: expected an object"},
           Case{R"({"order": [], "buckets": [{}]})", "buckets[0].members: missing"},
           Case{R"({"order": [], "buckets": [{"members": [1, "2"]}]})", "buckets[0].members[1]"},
           Case{R"({"order": [], "buckets": [{"members": [1, 2], "mode": "x"}]})",
                "expected one of: packed, grouped"},
           Case{R"({"order": [], "prediction": {"total_ps": -4}})", "prediction.total_ps"},
       }) {
    const absl::StatusOr<Plan> plan = PlanFromJson(c.json);
    ASSERT_FALSE(plan.ok()) << c.json;
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(c.says)) << c.json;
  }
}

TEST(PlanFile, RefusesControlCharactersInWhatPeopleRead) {
  const Planned p = Example();
  using Spoil = void (*)(Plan&, const std::string&);
  const std::pair<const char*, Spoil> fields[] = {
      {"mode", [](Plan& of, const std::string& text) { of.mode = text; }},
      {"planner", [](Plan& of, const std::string& text) { of.planner = text; }},
      {"cost_profile", [](Plan& of, const std::string& text) { of.cost_profile = text; }},
      {"backend", [](Plan& of, const std::string& text) { of.backend = text; }},
      {"bits_text", [](Plan& of, const std::string& text) { of.bits_text = text; }},
      {"buckets[0].name", [](Plan& of, const std::string& text) { of.buckets[0].name = text; }},
      {"diagnostics[0].code",
       [](Plan& of, const std::string& text) {
         of.diagnostics = {{text, "", {}}};
       }},
      {"diagnostics[0].text", [](Plan& of, const std::string& text) {
         of.diagnostics = {{"", text, {}}};
       }}};
  for (const auto& [field, spoil] : fields) {
    for (const char bad : {'\x01', '\f', '\x1b', '\x7f', '\0'}) {
      Plan plan = p.plan;
      spoil(plan, absl::StrCat("a\t\n", std::string(1, bad)));
      for (const std::string& bytes : {PlanToJson(p.graph, plan), SerializePlan(p.graph, plan)}) {
        EXPECT_THAT(std::string(ReadPlan(bytes).status().message()),
                    HasSubstr(absl::StrCat("plan: ", field, ": \"a\\t\\n")));
      }
    }
    Plan plan = p.plan;
    spoil(plan, "layers.0 +\r\n\tlayers.1 \u00e4");  // of entries in lines of their own
    EXPECT_TRUE(ReadPlan(PlanToJson(p.graph, plan)).ok()) << field;
  }
}

TEST(PlanProto, RefusesEveryTruncation) {
  const Planned p = Example();
  const std::string bytes = SerializePlan(p.graph, p.plan);
  int accepted = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::StatusOr<Plan> plan = ParsePlan(absl::string_view(bytes).substr(0, size));
    // A message that ends between fields parses; then something must be missing that verification
    // sees: what follows the order is not needed to apply a plan.
    if (plan.ok() && VerifyPlan(p.graph, *plan).ok()) ++accepted;
  }
  EXPECT_LT(accepted, 16);
}

TEST(PlanProto, SurvivesDamageOfAnyByte) {
  const Planned p = Example();
  const std::string bytes = SerializePlan(p.graph, p.plan);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    const absl::StatusOr<Plan> plan = ParsePlan(damaged);
    if (!plan.ok()) {
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    } else {
      VerifyPlan(p.graph, *plan).IgnoreError();
    }
  }
}

v1::Plan Message() {
  const Planned p = Example();
  v1::Plan message;
  EXPECT_TRUE(message.ParseFromString(SerializePlan(p.graph, p.plan)));
  return message;
}

std::string Refusal(const v1::Plan& message) {
  const absl::StatusOr<Plan> plan = PlanFromProto(message);
  return plan.ok() ? "accepted" : std::string(plan.status().message());
}

TEST(PlanProto, NamesTheFieldThatIsWrong) {
  v1::Plan m = Message();
  EXPECT_EQ(Refusal(m), "accepted");
  m.set_format_version(2);
  EXPECT_THAT(Refusal(m), HasSubstr("format_version: is 2, expected 1"));
  m = Message();
  m.set_graph_digest("short");
  EXPECT_THAT(Refusal(m), HasSubstr("graph_digest"));
  m = Message();
  m.mutable_buckets(1)->set_members(0, m.node_count());
  EXPECT_THAT(Refusal(m), HasSubstr("buckets[1].members"));
  m = Message();
  m.mutable_buckets(0)->set_mode(static_cast<v1::BucketMode>(7));
  EXPECT_THAT(Refusal(m), HasSubstr("buckets[0].mode: unknown value 7"));
  m = Message();
  m.mutable_buckets(0)->add_offsets(3);
  EXPECT_THAT(Refusal(m), HasSubstr("buckets[0].offsets"));
  m = Message();
  m.set_order(3, 4 * uint64_t{m.node_count()});
  EXPECT_THAT(Refusal(m), HasSubstr("order[3]"));
  m = Message();
  m.set_order(3, 3);
  EXPECT_THAT(Refusal(m), HasSubstr("order[3]"));
  m = Message();
  m.set_order(0, ~uint64_t{0});
  EXPECT_THAT(Refusal(m), HasSubstr("order[0]"));
  m = Message();
  for (uint32_t i = 0; i < 3 * m.node_count(); ++i) m.add_order(0);
  EXPECT_THAT(Refusal(m), HasSubstr("steps for"));
  m = Message();
  m.set_numerics(v1::NUMERICS_UNSPECIFIED);
  EXPECT_THAT(Refusal(m), HasSubstr("numerics: unknown value 0"));
  m = Message();
  m.mutable_prediction()->set_peak_bytes(-1);
  EXPECT_THAT(Refusal(m), HasSubstr("prediction"));
}

TEST(Mesh, RefusesWhatIsNoMesh) {
  v1::Mesh mesh;
  mesh.set_device_type("cpu");
  v1::MeshDim* dim = mesh.add_dims();
  dim->set_name("dp");
  dim->set_size(4);
  EXPECT_EQ(MeshFromProto(mesh)->dims[0].size, 4);
  dim->set_ranks_per_node(5);
  EXPECT_THAT(MeshFromProto(mesh).status().message(), HasSubstr("5 ranks a node"));
  dim->set_ranks_per_node(0);
  *mesh.add_dims() = *dim;
  EXPECT_THAT(MeshFromProto(mesh).status().message(), HasSubstr("two dimensions"));
  mesh.mutable_dims(1)->set_name("tp");
  mesh.mutable_dims(1)->set_size(0);
  EXPECT_THAT(MeshFromProto(mesh).status().message(), HasSubstr("dimension tp has 0 ranks"));
  mesh.mutable_dims(1)->set_size(2);
  mesh.set_device_type("abacus");
  EXPECT_THAT(MeshFromProto(mesh).status().message(), HasSubstr("cuda, cpu"));
}

TEST(Options, FillDefaultsByDevice) {
  Mesh mesh;
  mesh.device_type = "cpu";
  const absl::StatusOr<PlanOptions> options = OptionsFromProto(v1::PlanOptions(), mesh);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->backend, "gloo");
  EXPECT_EQ(options->mode, PlanOptions().mode);
  EXPECT_EQ(options->prefetch_forward, PlanOptions().prefetch_forward);
  mesh.device_type = "cuda";
  EXPECT_EQ(OptionsFromProto(v1::PlanOptions(), mesh)->backend, "nccl");
}

TEST(Options, SurviveTheWire) {
  PlanOptions options;
  options.numerics = Numerics::kExact;
  options.backend = "gloo";
  options.memory_limit_ppm = 1'200'000;
  options.memory_limit_bytes = 77;
  options.prefetch_forward = 0;  // not the same as unset
  options.prefetch_backward = 3;
  options.parameter_order = {"b", "a"};
  options.strict_coverage = true;
  v1::PlanOptions message;
  OptionsToProto(options, message);
  const absl::StatusOr<PlanOptions> read = OptionsFromProto(message, Mesh());
  ASSERT_TRUE(read.ok()) << read.status();
  v1::PlanOptions again;
  OptionsToProto(*read, again);
  EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
  EXPECT_EQ(read->prefetch_forward, 0);
  message.set_mode("no_such_mode");
  EXPECT_THAT(OptionsFromProto(message, Mesh()).status().message(), HasSubstr("transformer_block"));
  message.set_mode("");
  message.set_numerics(static_cast<v1::Numerics>(9));
  EXPECT_THAT(OptionsFromProto(message, Mesh()).status().message(), HasSubstr("numerics"));
}

}  // namespace
}  // namespace bucketd
