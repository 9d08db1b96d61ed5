// One digest from every rank: graphs of real runs, and the digests that each implementation gives.
#include <map>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "passes/io/fx_json.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "tests/passes/test_data.h"

namespace bucketd {
namespace {

using testing::ReadFile;
using testing::TestDataFiles;
using testing::TestDataPath;

std::map<std::string, std::string> Vectors() {
  return nlohmann::json::parse(ReadFile(TestDataPath("vectors/vectors.json")))
      .get<std::map<std::string, std::string>>();
}

NormalizedGraph ReadNormalized(const std::string& file) {
  auto captured = ReadCapturedGraphFile(file);
  EXPECT_TRUE(captured.ok()) << captured.status();
  auto normalized = Normalize(captured->graph);
  EXPECT_TRUE(normalized.ok()) << file << ": " << normalized.status();
  return *std::move(normalized);
}

TEST(Vectors, EveryGraphOfTheFolderIsListedAndEveryListedOneIsThere) {
  std::set<std::string> listed;
  for (const auto& [file, digest] : Vectors()) listed.insert(file);
  std::set<std::string> found;
  for (const std::string& path : TestDataFiles("vectors", ".json.gz")) {
    found.insert(path.substr(path.rfind('/') + 1));
  }
  EXPECT_FALSE(found.empty());
  EXPECT_EQ(found, listed);
}

TEST(Vectors, GiveTheStatedDigests) {
  for (const auto& [file, digest] : Vectors()) {
    const NormalizedGraph normalized = ReadNormalized(TestDataPath("vectors/" + file));
    EXPECT_EQ(ToHex(GraphDigest(normalized.graph)), digest) << file;
  }
}

TEST(Vectors, AreNormalisedOnceAndForAll) {
  for (const auto& [file, digest] : Vectors()) {
    const NormalizedGraph once = ReadNormalized(TestDataPath("vectors/" + file));
    const auto twice = Normalize(once.graph);
    ASSERT_TRUE(twice.ok()) << twice.status();
    EXPECT_EQ(ToHex(GraphDigest(twice->graph)), digest) << file;
    for (NodeId n = 0; n < twice->graph.size(); ++n) {
      ASSERT_EQ(twice->raw_id[static_cast<size_t>(n)], n) << file;
    }
  }
}

TEST(Vectors, OfUnevenShardsDifferInNodesBeforeNormalisation) {
  const std::string zero = TestDataPath("vectors/fsdp_uneven.fw.rank0.json.gz");
  const std::string three = TestDataPath("vectors/fsdp_uneven.fw.rank3.json.gz");
  auto full = ReadCapturedGraphFile(zero);
  auto shorter = ReadCapturedGraphFile(three);
  ASSERT_TRUE(full.ok() && shorter.ok());
  EXPECT_LT(full->graph.size(), shorter->graph.size());
  EXPECT_EQ(ReadNormalized(zero).graph.size(), ReadNormalized(three).graph.size());
}

}  // namespace
}  // namespace bucketd
