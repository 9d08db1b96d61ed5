// Runs bucketd-opt over every file of golden/ and compares what it writes with what stands there.
// BUCKETD_UPDATE_GOLDENS=1 writes the files anew: read the difference before you commit it.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/tools/opt.h"
#include "passes/tools/opt_flags.h"

namespace bucketd {
namespace {

constexpr char kRun[] = "// RUN:";

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> GoldenFiles() {
  const char* source = std::getenv("BUCKETD_SOURCE_DIR");
  if (source == nullptr) return {};
  std::vector<std::string> files;
  const std::string folder = absl::StrCat(source, "/tests/passes/golden");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".bir") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::string> RunLine(const std::string& arguments, absl::string_view text) {
  OptFlags flags;
  CLI::App app("bucketd-opt");
  AddOptFlags(app, flags);
  try {
    app.parse(arguments, false);
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(arguments, ": ", error.what()));
  }
  const absl::StatusOr<OptRequest> request = flags.ToRequest();
  if (!request.ok()) return request.status();
  const absl::StatusOr<OptInput> input = ReadOptInput(text);
  if (!input.ok()) return input.status();
  return RunOpt(*input, *request);
}

// What a golden's input gives: one part for each RUN line, named by it where there are several.
std::string Outcome(absl::string_view text) {
  std::vector<std::string> runs;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, kRun)) {
      runs.emplace_back(absl::StripAsciiWhitespace(absl::StripPrefix(line, kRun)));
    }
  }
  EXPECT_FALSE(runs.empty()) << "no line begins with " << kRun;
  std::string out;
  for (const std::string& arguments : runs) {
    if (runs.size() > 1) absl::StrAppend(&out, "// ---- ", arguments, "\n");
    const absl::StatusOr<std::string> result = RunLine(arguments, text);
    absl::StrAppend(
        &out, result.ok()
                  ? *result
                  : absl::StrCat("// refused: ", absl::StatusCodeToString(result.status().code()),
                                 ": ", result.status().message(), "\n"));
  }
  return out;
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, IsWhatThePassesMake) {
  const std::string whole = ReadWhole(GetParam());
  const size_t at = whole.find(kGoldenMark);
  const std::string input = whole.substr(0, at);
  const std::string outcome = Outcome(input);
  if (std::getenv("BUCKETD_UPDATE_GOLDENS") != nullptr) {
    std::ofstream(GetParam(), std::ios::binary) << input << kGoldenMark << outcome;
    return;
  }
  ASSERT_NE(at, std::string::npos) << "expected a line " << kGoldenMark;
  EXPECT_EQ(outcome, whole.substr(at + sizeof(kGoldenMark) - 1));
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, ::testing::ValuesIn(GoldenFiles()), [](const auto& test) {
  std::string name = std::filesystem::path(test.param).stem().string();
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Golden);

TEST(Goldens, AreThere) { EXPECT_GE(GoldenFiles().size(), 10u); }

}  // namespace
}  // namespace bucketd
