// What is copied from store to store: a bundle comes back as it was written, and a damaged one is
// an error that names the entry.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "server/store/bundle.h"
#include "tests/server/store_fixture.h"

namespace bucketd::store_test {
namespace {

using ::testing::HasSubstr;

TEST_F(StoreTest, ABundleComesBackAsItWasWritten) {
  const std::string path = folder_ + "/plans.bundle";
  const std::vector<BundleEntry> entries = {
      {BundleKind::kPlan, Shelf{}, "team", KeyOf(1), Bytes(5'000, 'p'), {}},
      {BundleKind::kHold, Shelf{}, "", KeyOf(1), "a job",
       WallTime(milliseconds(1'800'000'000'123))},
      {BundleKind::kRecord, Shelf::kProfiles, "", "name", std::string("v\0v", 3), {}},
      {BundleKind::kPlan, Shelf{}, "", "", "", {}},
  };
  {
    auto writer = BundleWriter::Open(path);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const BundleEntry& entry : entries) (*writer)->Add(entry);
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  auto reader = BundleReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  BundleEntry entry;
  for (const BundleEntry& expected : entries) {
    const auto more = (*reader)->Next(entry);
    ASSERT_TRUE(more.ok() && *more) << more.status();
    EXPECT_EQ(entry.kind, expected.kind);
    EXPECT_EQ(entry.shelf, expected.shelf);
    EXPECT_EQ(entry.tenant, expected.tenant);
    EXPECT_EQ(entry.key, expected.key);
    EXPECT_EQ(entry.value, expected.value);
    EXPECT_EQ(entry.kind == BundleKind::kHold ? entry.expires : WallTime{}, expected.expires);
  }
  const auto end = (*reader)->Next(entry);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_FALSE(*end);
}

// Reads to the end, or to the first error.
absl::Status ReadBundle(const std::string& path, const std::string& bytes) {
  WriteFile(path, bytes);
  auto reader = BundleReader::Open(path);
  absl::Status status = reader.status();
  BundleEntry entry;
  while (status.ok()) {
    const auto more = (*reader)->Next(entry);
    status = more.status();
    if (more.ok() && !*more) break;
  }
  return status;
}

TEST_F(StoreTest, ADamagedBundleIsAnErrorWhereverTheDamageIs) {
  const std::string path = folder_ + "/plans.bundle";
  {
    auto writer = BundleWriter::Open(path);
    (*writer)->Add({BundleKind::kPlan, Shelf{}, "team", KeyOf(1), "plan", {}});
    (*writer)->Add({BundleKind::kHold, Shelf{}, "", KeyOf(1), "job", now_});
    (*writer)->Add({BundleKind::kRecord, Shelf::kSettings, "", "k", "v", {}});
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  const std::string whole = ReadFile(path);
  const auto read = [&](const std::string& bytes) { return ReadBundle(path, bytes); };
  EXPECT_TRUE(read(whole).ok());
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    EXPECT_EQ(read(damaged).code(), absl::StatusCode::kInvalidArgument) << at;
    EXPECT_EQ(read(whole.substr(0, at)).code(), absl::StatusCode::kInvalidArgument) << at;
    damaged = whole;
    for (size_t i = at; i < std::min(at + 8, damaged.size()); ++i) damaged[i] = '\xff';
    EXPECT_EQ(read(damaged).code(), absl::StatusCode::kInvalidArgument) << at;
  }
  EXPECT_EQ(read(whole + "x").code(), absl::StatusCode::kInvalidArgument);
}

// Whoever makes a bundle of their own can make sums, too.
TEST_F(StoreTest, ABundleWithRightSumsAndWrongContentIsRefusedWithTheEntry) {
  const std::string path = folder_ + "/plans.bundle";
  const std::string magic = "bucketd bundle 2\n";
  const auto entry = [](char kind, char shelf, uint8_t value_bytes, const std::string& value) {
    std::string bytes = {kind, shelf};
    bytes.append(8, '\0');  // no tenant, no key
    bytes += static_cast<char>(value_bytes);
    bytes.append(7, '\0');
    bytes += value;
    return absl::StrCat(bytes, AsBytes(Sha256(bytes)));
  };
  const std::string plan = entry(1, 0, 1, "v");
  const std::string record = entry(2, 1, 1, "v");
  const auto end = [&](uint8_t entries) { return entry(0, 0, entries, ""); };
  EXPECT_TRUE(ReadBundle(path, magic + plan + record + end(2)).ok());
  EXPECT_TRUE(ReadBundle(path, "bucketd bundle 1\n" + plan + record + end(2)).ok());
  EXPECT_TRUE(ReadBundle(path, magic + plan + entry(3, 0, 8, "12345678") + end(2)).ok());
  const auto refused = [&](const std::string& entries) {
    const absl::Status status = ReadBundle(path, magic + entries);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(plan + end(2)), HasSubstr("entry 1, at byte 68: entries are missing"));
  EXPECT_THAT(refused(plan + record + end(1)), HasSubstr("entries are missing"));
  EXPECT_THAT(refused(plan + end(1) + plan), HasSubstr("something follows the end"));
  EXPECT_THAT(refused(plan + entry(3, 0, 7, "1234567") + end(2)),
              HasSubstr("entry 1, at byte 68: has no time"));
  EXPECT_THAT(refused(plan + entry(4, 0, 1, "v") + end(2)),
              HasSubstr("entry 1, at byte 68: is neither a plan, a record nor a hold"));
  EXPECT_THAT(refused(entry(1, 1, 1, "v") + end(1)), HasSubstr("a shelf that is not known"));
  EXPECT_THAT(refused(entry(2, 0, 1, "v") + end(1)), HasSubstr("a shelf that is not known"));
  EXPECT_THAT(refused(entry(2, 5, 1, "v") + end(1)), HasSubstr("a shelf that is not known"));
}

}  // namespace
}  // namespace bucketd::store_test
