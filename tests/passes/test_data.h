// Where the tests' data lies, and short ways to read it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "passes/io/fx_json.h"

namespace bucketd::testing {

// tests/data, by the environment that CTest sets.
inline std::string TestDataPath(const std::string& file) {
  const char* folder = std::getenv("BUCKETD_TEST_DATA");
  if (folder == nullptr) {
    ADD_FAILURE() << "BUCKETD_TEST_DATA is not set; run through ctest";
    return file;
  }
  return std::string(folder) + "/" + file;
}

// Files of a folder of tests/data with this ending, sorted.
inline std::vector<std::string> TestDataFiles(const std::string& folder,
                                              const std::string& ending) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(TestDataPath(folder))) {
    const std::string name = entry.path().filename().string();
    const bool ends = name.size() >= ending.size() &&
                      name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
    if (ends) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A captured graph of tests/data/graphs by name, e.g. "llama3_debug_fsdp8.bw".
inline CapturedGraph ReadTestGraph(const std::string& name) {
  auto graph = ReadCapturedGraphFile(TestDataPath("graphs/" + name + ".json.gz"));
  if (!graph.ok()) {
    ADD_FAILURE() << graph.status();
    std::abort();
  }
  return *std::move(graph);
}

}  // namespace bucketd::testing
