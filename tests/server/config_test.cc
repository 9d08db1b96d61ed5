// Options by file, environment and flags: what wins, what is said of mistakes, what --check prints.
#include "server/config/config.h"

#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/server/fixture.h"
#include "tests/temp_folder.h"

namespace bucketd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfigTest : public ::testing::Test {
 protected:
  std::string File(const std::string& text) {
    const std::string path = folder_ + "/bucketd.toml";
    std::ofstream(path) << text;
    return path;
  }

  static std::string From(const Config& config, absl::string_view name) {
    for (size_t i = 0; i < OptionTable().size(); ++i) {
      if (OptionTable()[i].name == name) return config.from[i];
    }
    return "";
  }

  static std::string ErrorOf(const ConfigSources& sources) {
    const absl::StatusOr<Config> config = LoadConfig(sources);
    return config.ok() ? "" : std::string(config.status().message());
  }

  static Ran Run(const std::string& arguments) { return RunProgram("bucketd " + arguments); }

  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
};

TEST_F(ConfigTest, AFlagCountsMoreThanAVariableMoreThanTheFileMoreThanTheDefault) {
  ConfigSources sources;
  sources.file =
      File("max_uploads = 1\nmax_waiting = 2\ncompute_queue = 3\n\nmax_chunk_bytes = 4\n");
  sources.environment = {{"BUCKETD_MAX_WAITING", "20"}, {"BUCKETD_COMPUTE_QUEUE", "30"}};
  sources.flags = {{"compute-queue", "300"}};
  const absl::StatusOr<Config> config = LoadConfig(sources);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->options.intake.max_uploads, 1);
  EXPECT_EQ(config->options.max_waiting, 20);
  EXPECT_EQ(config->options.compute_queue, 300);
  EXPECT_EQ(config->options.intake.max_chunk_bytes, 4);
  EXPECT_EQ(config->options.upload_threads, ServerOptions().upload_threads);
  EXPECT_EQ(From(*config, "max-uploads"), sources.file + ":1");
  EXPECT_EQ(From(*config, "max-chunk-bytes"), sources.file + ":5");
  EXPECT_EQ(From(*config, "max-waiting"), "environment BUCKETD_MAX_WAITING");
  EXPECT_EQ(From(*config, "compute-queue"), "flag --compute-queue");
  EXPECT_EQ(From(*config, "upload-threads"), "default");
}

TEST_F(ConfigTest, EveryKindOfValueIsRead) {
  ConfigSources sources;
  sources.file = File(
      "listen = \"unix:/run/x\"\ninsecure = true\nplan_cache_bytes = \"2GiB\"\n"
      "graph_cache_bytes = \"512 KiB\"\nsocket_mode = 0o660\ndrain_seconds = 2.5\n"
      "upload_lease_ms = 7\nexit_with_parent = true\n");
  const absl::StatusOr<Config> config = LoadConfig(sources);
  ASSERT_TRUE(config.ok()) << config.status();
  const ServerOptions& o = config->options;
  EXPECT_EQ(o.listen, "unix:/run/x");
  EXPECT_TRUE(o.insecure);
  EXPECT_EQ(o.plan_cache_bytes, int64_t{2} << 30);
  EXPECT_EQ(o.graph_cache_bytes, 512 << 10);
  EXPECT_EQ(o.socket_mode, 0660);
  EXPECT_EQ(o.drain, std::chrono::milliseconds(2500));
  EXPECT_EQ(o.upload_lease, std::chrono::milliseconds(7));
  EXPECT_EQ(o.process.exit_with_parent, 1);
}

TEST_F(ConfigTest, AMistakeIsToldWithItsSourceAndKey) {
  const std::string path = File("max_uploads = \"many\"\n");
  EXPECT_THAT(ErrorOf({.file = path}),
              AllOf(HasSubstr(path + ":1: max_uploads: "), HasSubstr("\"many\" is no")));
  EXPECT_THAT(ErrorOf({.environment = {{"BUCKETD_HTTP", "9461"}}}),
              AllOf(HasSubstr("BUCKETD_HTTP: "), HasSubstr("expected HOST:PORT")));
  EXPECT_THAT(ErrorOf({.flags = {{"log-level", "loud"}}}),
              AllOf(HasSubstr("--log-level: "), HasSubstr("known are trace, debug")));
  EXPECT_THAT(ErrorOf({.flags = {{"insecure", "maybe"}}}), HasSubstr("--insecure: "));
  EXPECT_THAT(ErrorOf({.flags = {{"socket-mode", "689"}}}), HasSubstr("--socket-mode: "));
  EXPECT_THAT(ErrorOf({.flags = {{"plan-cache-bytes", "9000000TiB"}}}),
              HasSubstr("--plan-cache-bytes: "));
}

TEST_F(ConfigTest, AllMistakesAreToldAtOnce) {
  const std::string error = ErrorOf(
      {.file = File("max_uploads = 0\nmax_waiting = 0\n"), .flags = {{"listen", "nowhere"}}});
  EXPECT_THAT(error, AllOf(HasSubstr(":1: max_uploads: 0 is too small, at least 1"),
                           HasSubstr(":2: max_waiting: 0 is too small"), HasSubstr("--listen: ")));
  // Keys that are none hide no values that cannot be.
  EXPECT_THAT(ErrorOf({.file = File("no_such_key = 1\nmax_uploads = 0\n")}),
              AllOf(HasSubstr(":1: no_such_key: "), HasSubstr(":2: max_uploads: 0 is too small")));
}

TEST_F(ConfigTest, ASwitchIsTrueOrFalseAndNoText) {
  EXPECT_THAT(ErrorOf({.file = File("log_json = \"yes\"\n")}),
              HasSubstr(":1: log_json: expected true or false, without quotes"));
}

TEST_F(ConfigTest, AnUnknownKeyIsAnErrorThatNamesTheNearest) {
  EXPECT_THAT(ErrorOf({.file = File("\nmax_graf_nodes = 5\n")}),
              AllOf(HasSubstr(":2: max_graf_nodes: there is no such key"),
                    HasSubstr("did you mean max_graph_nodes?")));
  EXPECT_THAT(ErrorOf({.flags = {{"liste", ""}}}), HasSubstr("did you mean --listen?"));
  EXPECT_THAT(ErrorOf({.environment = {{"BUCKETD_MAX_WAITNG", "5"}}}),
              HasSubstr("did you mean BUCKETD_MAX_WAITING?"));
  EXPECT_THAT(ErrorOf({.file = File("[limits]\nmax_uploads = 5\n")}), HasSubstr(":1: limits: "));
}

TEST_F(ConfigTest, VariablesOfOtherProgramsAreLeftAlone) {
  ConfigSources sources;
  sources.environment = {{"BUCKETD_ADDRESS", "x"},
                         {"BUCKETD_BINARY", "x"},
                         {"BUCKETD_BIN", "x"},
                         {"BUCKETD_CLIENT_CA", "x"},
                         {"BUCKETD_CLIENT_CERT", "x"},
                         {"BUCKETD_CLIENT_KEY", "x"},
                         {"BUCKETD_PORT", "tcp://10.0.0.1:9460"},
                         {"PATH", "x"}};
  EXPECT_TRUE(LoadConfig(sources).ok()) << LoadConfig(sources).status();
}

TEST_F(ConfigTest, AFileThatIsNoTomlOrNotThereIsAnError) {
  EXPECT_THAT(ErrorOf({.file = File("max_uploads = \n")}), HasSubstr("bucketd.toml:1:"));
  EXPECT_THAT(ErrorOf({.file = File("http = \"\"\nhttp = \"\"\n")}), HasSubstr("bucketd.toml:2:"));
  EXPECT_THAT(ErrorOf({.file = folder_ + "/none"}),
              AllOf(HasSubstr("--config: "), HasSubstr("/none: no such file")));
  EXPECT_FALSE(ErrorOf({.file = folder_}).empty());
}

TEST_F(ConfigTest, NumbersThatCannotBeAreRefused) {
  for (const auto& [flag, text] : std::map<std::string, std::string>{
           {"max-upload-bytes", "9223372036854775807"},  // and 64 MiB more would be below 0
           {"max-graph-bytes", "1025TiB"},
           {"store-bytes", "-9223372036854775808"},
           {"max-graph-nodes", "9223372036854775807"},        // and 32 parts for each
           {"max-compression-ratio", "9223372036854775807"},  // times the bytes that came
           {"exit-with-parent", "4294967297"}}) {             // the process 1, in 32 bits
    ConfigSources sources;
    sources.flags = {{flag, text}};
    EXPECT_THAT(ErrorOf(sources), HasSubstr(absl::StrCat("--", flag, ": "))) << text;
  }
  ConfigSources sources;
  sources.flags = {{"store-bytes", "1024TiB"}};
  EXPECT_EQ(ErrorOf(sources), "");
}

TEST_F(ConfigTest, AnAddressOfThisMachineIsANumberAndNoNameThatLooksLikeOne) {
  for (const char* flag : {"listen", "http"}) {
    ConfigSources sources;
    sources.flags = {{flag, "127.0.0.1.example.com:9460"}};
    EXPECT_THAT(ErrorOf(sources), HasSubstr("can be reached from other machines")) << flag;
    sources.flags = {{flag, "127.1.2.3:9460"}};
    EXPECT_EQ(ErrorOf(sources), "");
  }
}

TEST_F(ConfigTest, AFileWithoutEndIsNotReadToItsEnd) {
  ConfigSources sources;
  sources.file = "/dev/zero";
  EXPECT_THAT(ErrorOf(sources), HasSubstr("/dev/zero: more than 1048576 bytes"));
}

TEST_F(ConfigTest, WhatIsPrintedIsAFileThatGivesTheSameConfiguration) {
  ConfigSources sources;
  sources.flags = {{"listen", "unix:/tmp/a \"b\""},
                   {"socket-mode", "640"},
                   {"drain-seconds", "43199.126"},
                   {"job-idle-hours", "12345.678"}};
  const absl::StatusOr<Config> first = LoadConfig(sources);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<Config> again = LoadConfig({.file = File(PrintConfig(*first))});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->options.drain, std::chrono::milliseconds(43'199'126));
  EXPECT_EQ(again->options.job_idle, std::chrono::milliseconds(44'444'440'800));
  for (const OptionRow& row : OptionTable()) {
    EXPECT_EQ(PrintOption(row, again->options), PrintOption(row, first->options)) << row.name;
    EXPECT_NE(From(*again, row.name), "default") << row.name;
  }
}

TEST_F(ConfigTest, EveryRowOfTheTableIsWhole) {
  const ServerOptions defaults;
  for (const OptionRow& row : OptionTable()) {
    EXPECT_FALSE(absl::string_view(row.help).empty()) << row.name;
    ServerOptions copy;
    EXPECT_TRUE(SetOption(row, PrintOption(row, defaults), copy).ok()) << row.name;
    EXPECT_EQ(PrintOption(row, copy), PrintOption(row, defaults)) << row.name;
    for (const OptionRow& other : OptionTable()) {
      EXPECT_TRUE(&row == &other || absl::string_view(row.name) != other.name) << row.name;
    }
  }
  EXPECT_TRUE(defaults.Validate().ok());
}

// The file that is installed documents options: each line must exist and show the default.
TEST_F(ConfigTest, TheInstalledFileNamesRealKeysWithTheirDefaults) {
  std::ifstream file(absl::StrCat(getenv("BUCKETD_SOURCE_DIR"), "/deploy/systemd/bucketd.toml"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::string uncommented;
  int keys = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool is_key = line.size() > 1 && line[0] == '#' && line[1] != ' ';
    keys += is_key ? 1 : 0;
    absl::StrAppend(&uncommented, is_key ? line.substr(1) : line, "\n");
  }
  EXPECT_GT(keys, 10);
  const absl::StatusOr<Config> config = LoadConfig({.file = File(uncommented)});
  ASSERT_TRUE(config.ok()) << config.status();
  const ServerOptions defaults;
  for (const OptionRow& row : OptionTable()) {
    const absl::string_view name = row.name;
    // What a service manager wants; "store" is the same field.
    if (name == "log-json" || name == "store-dir" || name == "store") continue;
    EXPECT_EQ(PrintOption(row, config->options), PrintOption(row, defaults)) << row.name;
  }
}

TEST_F(ConfigTest, OneSourceDoesNotSayTwoThingsOfOne) {
  const std::string both = File("store_dir = \"/a\"\nstore = \"postgres://me:s3cret@h/d\"\n");
  EXPECT_THAT(ErrorOf({.file = both}),
              AllOf(HasSubstr("store_dir: "), HasSubstr(":2: store says otherwise"),
                    Not(HasSubstr("s3cret"))));
  EXPECT_THAT(ErrorOf({.environment = {{"BUCKETD_STORE", "/a"}, {"BUCKETD_STORE_DIR", "/b"}}}),
              HasSubstr("BUCKETD_STORE_DIR: BUCKETD_STORE says otherwise"));
  EXPECT_EQ(ErrorOf({.file = File("store_dir = \"/a\"\nstore = \"/a\"\n")}), "");
}

TEST_F(ConfigTest, WhatTwoNamesSetComesFromTheSourceThatCountsMost) {
  ConfigSources sources{.file = File("store_dir = \"/file\"\n"),
                        .environment = {{"BUCKETD_STORE", "/environment"}}};
  absl::StatusOr<Config> config = LoadConfig(sources);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->options.store_dir, "/environment");
  EXPECT_EQ(From(*config, "store-dir"), "environment BUCKETD_STORE");
  sources.flags = {{"store-dir", "/first"}, {"store", "/later"}};
  config = LoadConfig(sources);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->options.store_dir, "/later");
  EXPECT_EQ(From(*config, "store-dir"), "flag --store");
}

TEST_F(ConfigTest, APasswordIsNotPrinted) {
  const auto [out, zero] =
      Run("--store 'postgres://me:s3cret@h:1/d?password=s3cret&port=2' --check");
  EXPECT_EQ(zero, 0) << out;
  EXPECT_THAT(out, HasSubstr("postgres://me@h:1/d?password=...&port=2"));
  EXPECT_THAT(out, Not(HasSubstr("s3cret")));
}

TEST_F(ConfigTest, CheckWarnsAsAStartDoes) {
  const std::string store = "--store /var/lib/s --check --cluster-address ";
  EXPECT_THAT(Run(store + "planner-1:9460").output, HasSubstr("name a database in --store"));
  EXPECT_THAT(Run(store + "127.0.0.1:9460").output, Not(HasSubstr("name a database in --store")));
}

TEST_F(ConfigTest, CheckPrintsTheConfigurationAndExitsWithZeroOrTwo) {
  const std::string path = File("max_uploads = 5\n");
  const auto [good, zero] =
      Run(absl::StrCat("--config ", path, " --max-waiting 7 --insecure --check"));
  EXPECT_EQ(zero, 0) << good;
  EXPECT_THAT(good, AllOf(HasSubstr("max_uploads = 5"), HasSubstr("# " + path + ":1"),
                          HasSubstr("# flag --max-waiting"), HasSubstr("insecure = true"),
                          HasSubstr("# default")));
  const auto [bad, two] = Run(absl::StrCat("--config ", path, " --max-waiting 0 --check"));
  EXPECT_EQ(two, 2) << bad;
  EXPECT_THAT(bad, HasSubstr("--max-waiting: 0 is too small"));
  const auto [unknown, also_two] = Run("--max-waitin 3 --check");
  EXPECT_EQ(also_two, 2) << unknown;
  EXPECT_THAT(unknown, HasSubstr("did you mean --max-waiting?"));
  const auto [stray, again_two] = Run("serve --check");
  EXPECT_EQ(again_two, 2) << stray;
  EXPECT_THAT(stray, HasSubstr("unexpected argument \"serve\""));
}

}  // namespace
}  // namespace bucketd
