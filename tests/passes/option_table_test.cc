#include "passes/pass/option_table.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/io/proto_io.h"
#include "proto/planner.pb.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;

// A value other than the default for every option.
const std::map<std::string, std::string>& OtherValues() {
  static const auto* const values = new std::map<std::string, std::string>{
      {"mode", "manual"},
      {"numerics", "free"},
      {"backend", "gloo"},
      {"memory_limit_ppm", "1200000"},
      {"memory_limit_bytes", "77"},
      {"resident_bytes", "5"},
      {"buckets", "layers.[0-3],norm+output"},
      {"prefetch_forward", "2"},
      {"prefetch_backward", "0"},
      {"defer_reduce_scatter", "3"},
      {"reorder", "layers.1:2"},
      {"parameter_order", "a.w,b.w"},
      {"dense_regions", "strict"},
      {"bucket_cap_mb", "5,27.5,1000B"},
      {"max_topo_span", "none"},
      {"max_in_flight_mb", "1.5"},
      {"max_compute_prefetch", "9"},
      {"max_collective_distance", "8"},
      {"compute_overlap_ppm", "900000"},
      {"max_memory_increase_mb", "none"},
      {"max_memory_increase_ppm", "none"},
      {"memory_rule", "min"},
      {"max_off_path_mb", "0"},
      {"bucket_exposed_first", "on"},
      {"overlap_bucket_cap_mb", "64"},
      {"effort", "7"},
  };
  return *values;
}

std::string Other(const OptionInfo& option) {
  const auto it = OtherValues().find(std::string(option.name));
  if (it != OtherValues().end()) return it->second;
  return option.print(PlanOptions{}) == "on" ? "off" : "on";  // the rest are switches
}

PlanOptions AllOther() {
  PlanOptions options;
  for (const OptionInfo& option : AllOptions()) {
    EXPECT_TRUE(SetOption(options, option.name, Other(option)).ok()) << option.name;
  }
  return options;
}

TEST(OptionTable, EveryOptionChangesOneFieldAndPrintsItBack) {
  std::set<absl::string_view> names;
  for (const OptionInfo& option : AllOptions()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    PlanOptions options;
    const std::string standard = option.print(options);
    ASSERT_TRUE(SetOption(options, option.name, Other(option)).ok()) << option.name;
    const std::string text = option.print(options);
    EXPECT_NE(text, standard) << option.name;
    PlanOptions again;
    ASSERT_TRUE(SetOption(again, option.name, text).ok()) << option.name << " " << text;
    for (const OptionInfo& field : AllOptions()) {
      EXPECT_EQ(field.print(again), field.print(options)) << option.name << " " << field.name;
      if (field.name == option.name) continue;
      EXPECT_EQ(field.print(options), field.print(PlanOptions{})) << option.name;
    }
  }
}

TEST(OptionTable, TheWireCarriesEveryOption) {
  const PlanOptions options = AllOther();
  ASSERT_TRUE(options.Validate().ok()) << options.Validate();
  v1::PlanOptions message;
  OptionsToProto(options, message);
  const auto back = OptionsFromProto(message, Mesh{});
  ASSERT_TRUE(back.ok()) << back.status();
  for (const OptionInfo& option : AllOptions()) {
    EXPECT_EQ(option.print(*back), option.print(options)) << option.name;
  }
}

TEST(OptionTable, TheWireRefusesWhatItCannotKnowByName) {
  const auto refusal = [](const char* name, const char* value, int times = 1) {
    v1::PlanOptions message;
    for (int i = 0; i < times; ++i) {
      message.add_settings()->set_name(name);
      message.mutable_settings(i)->set_value(value);
    }
    const auto options = OptionsFromProto(message, Mesh{});
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(options.status().message());
  };
  EXPECT_THAT(refusal("wings", "2"), HasSubstr("unknown option \"wings\"; known: mode, numerics"));
  EXPECT_THAT(refusal("max_topo_span", "far"), HasSubstr("whole number"));
  EXPECT_THAT(refusal("mode", "none"), HasSubstr("mode has a field of its own"));
  EXPECT_THAT(refusal("upstream", "on", 2), HasSubstr("given twice"));
  EXPECT_THAT(refusal("max_collective_distance", "0"), HasSubstr("expected 1 to"));
}

TEST(OptionTable, AnOptionThatTheModeDoesNotReadIsNamedWithTheModesThatDo) {
  PlanOptions options;
  EXPECT_EQ(UnreadOptions(options), std::vector<std::string>());
  options.prefetch_forward = 3;
  options.numerics = Numerics::kFree;  // every mode reads it
  EXPECT_EQ(UnreadOptions(options),
            std::vector<std::string>{"prefetch_forward=3 is for modes transformer_block, manual, "
                                     "greedy: mode auto only tries those with it"});
  options.mode = "greedy";
  options.effort = 2;
  EXPECT_EQ(UnreadOptions(options),
            std::vector<std::string>{"effort=2 is for mode auto; mode greedy does not read it"});
}

TEST(OptionTable, SizesAreMebibytesRoundedDownOrBytes) {
  const auto bytes = [](const char* text) {
    PlanOptions options;
    EXPECT_TRUE(SetOption(options, "bucket_cap_mb", text).ok()) << text;
    return options.bucket_cap_bytes;
  };
  EXPECT_EQ(bytes("auto"), std::vector<int64_t>());
  EXPECT_EQ(bytes("1"), std::vector<int64_t>{1 << 20});
  EXPECT_EQ(bytes("61.4"), std::vector<int64_t>{64382566});  // 61.4 * 2^20 = 64,382,566.4
  EXPECT_EQ(bytes("0.000001"), std::vector<int64_t>{1});
  EXPECT_EQ(bytes("5,1000B"), (std::vector<int64_t>{5 << 20, 1000}));
  PlanOptions options;
  for (const char* text : {"",     "x",         "-1",  "-0.5", "5.+5",  "5. 5",
                           " 5",   "1.0000001", "1,",  "1e3",  "nan",   "9999999999999999999",
                           "1.-5", "B",         "-3B", " 3B",  "+3B",   "3 B",
                           "1.5B", "5.",        ".5",  "none", "5,none"}) {
    EXPECT_FALSE(SetOption(options, "bucket_cap_mb", text).ok()) << text;
  }
}

TEST(OptionTable, NumbersAreDigitsAloneAndNoneIsSaidWhereThereMayBeNoLimit) {
  PlanOptions options;
  for (const char* text : {"", " 3", "3 ", "+3", "-1", "3.0", "0x3", "3000000000"}) {
    EXPECT_EQ(SetOption(options, "max_compute_prefetch", text).message(),
              absl::StrCat("max_compute_prefetch is \"", text,
                           "\", expected a whole number, 0 to 2147483647, in digits alone"));
  }
  EXPECT_TRUE(SetOption(options, "max_compute_prefetch", "003").ok());
  EXPECT_EQ(options.max_compute_prefetch, 3);
  for (const OptionInfo& option : AllOptions()) {
    const absl::string_view first = option.values.substr(0, option.values.find_first_of(" ["));
    if (first != "N" && first != "MB") continue;
    EXPECT_EQ(SetOption(options, option.name, "none").ok(),
              absl::StrContains(option.values, "none"))
        << option.name;
  }
}

}  // namespace
}  // namespace bucketd
