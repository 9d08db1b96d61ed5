// The kill switch on a real store: what it says where the store is damaged, full, or shared.
#include "server/plans/planning_switch.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "prometheus/registry.h"

#include "server/base/metrics.h"
#include "server/store/sqlite_store.h"
#include "tests/server/forwarding_store.h"
#include "tests/server/full_disk.h"
#include "tests/server/store_fixture.h"

namespace bucketd::store_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SwitchTest : public StoreTest {
 protected:
  std::unique_ptr<SqliteStore> OpenOne(int32_t page_size = 4096, bool may_fail = false) {
    SqliteStoreOptions options;
    options.directory = folder_ + "/store";
    options.observer = &reads_;
    options.page_size = page_size;
    absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(std::move(options));
    EXPECT_TRUE(may_fail || store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  // As a process that was killed leaves it.
  static void CopyStore(const std::string& from, const std::string& to) {
    std::filesystem::create_directory(to);
    for (const char* name : {"/store.db", "/store.db-wal", "/acknowledged"}) {
      if (!std::filesystem::exists(from + name)) continue;
      std::filesystem::copy_file(from + name, to + name);
    }
  }
  static void Overwrite(const std::string& path, size_t at, char byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file << std::string(512, byte);
  }

  struct Reads : StoreObserver {
    void Read(StoreValue, StoreRead, absl::string_view) override { ++count; }
    int count = 0;
  } reads_;
  prometheus::Registry registry_;
  ServerMetrics metrics_{registry_};
};

TEST_F(SwitchTest, EachServerOfAStoreFollowsTheOthers) {
  const auto one = OpenOne(), other = OpenOne();
  PlanningSwitch mine(*one, true, metrics_.planning_enabled);
  PlanningSwitch theirs(*other, true, metrics_.planning_enabled);
  ASSERT_TRUE(theirs.Set(false, "INC-7", ServerItself()).ok());
  EXPECT_EQ(mine.WhyDisabled(), std::nullopt) << "nobody has looked";
  ASSERT_TRUE(mine.Look().ok());
  EXPECT_EQ(mine.WhyDisabled(), "INC-7");
  EXPECT_EQ(mine.Get().since_ms, theirs.Get().since_ms);
  ASSERT_TRUE(theirs.Set(false, "INC-8", ServerItself()).ok());
  ASSERT_TRUE(mine.Look().ok());
  EXPECT_EQ(mine.WhyDisabled(), "INC-8");
  ASSERT_TRUE(mine.Set(true, "fixed", ServerItself()).ok());
  ASSERT_TRUE(mine.Look().ok());
  EXPECT_EQ(mine.Get().why, "fixed") << "the store does not know why; this server does";
  ASSERT_TRUE(theirs.Look().ok());
  EXPECT_EQ(theirs.WhyDisabled(), std::nullopt);
  EXPECT_GT(theirs.Get().since_ms, 0);
}

TEST_F(SwitchTest, ALookReadsNothingWhileNobodyWrites) {
  const auto one = OpenOne(), other = OpenOne();
  PlanningSwitch mine(*one, true, metrics_.planning_enabled);
  ASSERT_TRUE(mine.Look().ok());
  const int before = reads_.count;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(mine.Look().ok());
  EXPECT_EQ(reads_.count, before);
  ASSERT_TRUE(other->PutPlan("key", "", "plan").ok());
  ASSERT_TRUE(mine.Look().ok());
  EXPECT_EQ(reads_.count, before + 1);
}

TEST_F(SwitchTest, ADamagedSettingIsOffForAllUntilSomebodySwitchesOn) {
  const std::string why(400, 'w');
  {
    const auto store = OpenOne();
    for (int i = 0; i < 40; ++i) {  // so that the damaged page is one of many
      ASSERT_TRUE(store->PutRecord(Shelf::kProfiles, absl::StrCat(i), std::string(3000, 'x')).ok());
    }
    ASSERT_TRUE(PlanningSwitch(*store, true, metrics_.planning_enabled)
                    .Set(false, why, ServerItself())
                    .ok());
  }
  const std::string path = folder_ + "/store/store.db";
  std::stringstream read;
  read << std::ifstream(path, std::ios::binary).rdbuf();
  std::string bytes = read.str();
  // The setting is "MILLISECONDS WHY"; the audit log has it, too, after "off: ".
  size_t at = bytes.find(" " + why);
  if (at != std::string::npos && bytes[at - 1] == ':') at = bytes.find(" " + why, at + 1);
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;

  const auto one = OpenOne(), other = OpenOne();
  PlanningSwitch finder(*one, true, metrics_.planning_enabled);
  EXPECT_THAT(finder.WhyDisabled().value_or(""), HasSubstr("is damaged"));
  // What is written in its place may fall into the damaged page, too; the next look tries again.
  const auto stored = [&] {
    return other->GetRecord(Shelf::kSettings, "planning-off").value_or(std::nullopt).has_value();
  };
  for (int look = 0; look < 100 && !stored(); ++look) {
    EXPECT_TRUE(finder.Look().ok());
    EXPECT_TRUE(finder.WhyDisabled().has_value());
  }
  EXPECT_TRUE(stored());
  PlanningSwitch next(*other, true, metrics_.planning_enabled);
  EXPECT_THAT(next.WhyDisabled().value_or(""), HasSubstr("is damaged"));
  ASSERT_TRUE(next.Set(true, "", ServerItself()).ok());
  ASSERT_TRUE(finder.Look().ok());
  EXPECT_FALSE(finder.WhyDisabled().has_value());
}

// Every file of a store that a killed server left, with one stretch of it damaged after the other.
TEST_F(SwitchTest, WhateverIsDamagedAServerThatWasOffDoesNotComeBackOn) {
  for (const bool merged : {true, false}) {
    const std::string left = absl::StrCat(folder_, merged ? "/merged" : "/log");
    {
      const auto store = OpenOne(1024);
      for (int i = 0; i < 6; ++i) {
        ASSERT_TRUE(store->PutRecord(Shelf::kPins, absl::StrCat(i), std::string(700, 'x')).ok());
      }
      ASSERT_TRUE(store->PutPlan("key", "", std::string(3000, 'p')).ok());
      ASSERT_TRUE(PlanningSwitch(*store, true, metrics_.planning_enabled)
                      .Set(false, "INC", ServerItself())
                      .ok());
      if (merged) {
        ASSERT_TRUE(store->Maintain().ok());
      }
      CopyStore(folder_ + "/store", left);
    }
    std::filesystem::remove_all(folder_ + "/store");
    int off = 0, refused = 0;
    for (const char* file : {"/store.db", "/store.db-wal"}) {
      const auto size = std::filesystem::file_size(left + file);
      for (size_t at = 0; at < size; at += 512) {
        for (const bool noise : {false, true}) {
          SCOPED_TRACE(absl::StrCat(left, file, " at ", at, noise ? " noise" : " zeros"));
          std::filesystem::remove_all(folder_ + "/store");
          CopyStore(left, folder_ + "/store");
          Overwrite(folder_ + "/store" + file, at, noise ? '\xa5' : '\0');
          for (int start = 0; start < 2; ++start) {  // and what the first one left behind
            const auto store = OpenOne(1024, /*may_fail=*/true);
            (store == nullptr ? refused : off) += 1;
            if (store == nullptr) break;
            EXPECT_TRUE(
                PlanningSwitch(*store, true, metrics_.planning_enabled).WhyDisabled().has_value());
          }
        }
      }
    }
    EXPECT_GT(off, 20);
    EXPECT_GT(refused, 0);
    std::filesystem::remove_all(folder_ + "/store");
  }
}

TEST_F(SwitchTest, WithoutAStoreThatCanBeReadItIsOffUntilSomebodySwitchesOn) {
  {
    const auto store = OpenOne(512);
    for (int i = 0; i < 40; ++i) {  // their index is of several pages
      ASSERT_TRUE(store->PutRecord(Shelf::kSettings, absl::StrCat(i), "x").ok());
    }
  }
  const std::string path = folder_ + "/store/store.db";
  const auto size = std::filesystem::file_size(path);
  CopyStore(folder_ + "/store", folder_ + "/whole");
  int unknown = 0;
  for (size_t at = 512; at < size; at += 512) {
    std::filesystem::remove_all(folder_ + "/store");
    CopyStore(folder_ + "/whole", folder_ + "/store");
    Overwrite(path, at, '\xa5');
    const auto store = OpenOne(512, /*may_fail=*/true);
    if (store == nullptr || store->GetRecord(Shelf::kSettings, "planning-off").ok()) continue;
    ++unknown;
    PlanningSwitch planning(*store, true, metrics_.planning_enabled);
    EXPECT_THAT(planning.WhyDisabled().value_or("on"),
                AllOf(HasSubstr("bucketctl enable"), HasSubstr("store verify")));
    EXPECT_EQ(metrics_.planning_enabled.Value(), 0);
    EXPECT_FALSE(planning.Look().ok());
    EXPECT_TRUE(planning.WhyDisabled().has_value());
    ASSERT_TRUE(planning.Set(true, "we know better", ServerItself()).ok());
    EXPECT_FALSE(planning.WhyDisabled().has_value()) << "though it cannot be stored";
    EXPECT_FALSE(planning.Look().ok());
    EXPECT_FALSE(planning.WhyDisabled().has_value());
  }
  EXPECT_GT(unknown, 0);
}

TEST_F(SwitchTest, OnAFullDiskItHoldsAtOnceAndIsStoredWhenThereIsRoom) {
  const auto one = OpenOne(), other = OpenOne();
  PlanningSwitch mine(*one, true, metrics_.planning_enabled);
  PlanningSwitch theirs(*other, true, metrics_.planning_enabled);
  {
    const FullDisk full;
    ASSERT_TRUE(mine.Set(false, "INC-7", {"ops", "host", "*"}).ok());
    EXPECT_EQ(mine.WhyDisabled(), "INC-7");
    EXPECT_EQ(metrics_.planning_enabled.Value(), 0);
    EXPECT_TRUE(other->ListAudit({}, 9)->empty());
    EXPECT_FALSE(mine.Get().persisted);
    EXPECT_THAT(mine.Get().InWords(), AllOf(HasSubstr("INC-7"), HasSubstr("not in the store yet")));
    EXPECT_FALSE(mine.Look().ok());
    EXPECT_EQ(mine.WhyDisabled(), "INC-7");
  }
  ASSERT_TRUE(mine.Look().ok());
  EXPECT_TRUE(mine.Get().persisted);
  EXPECT_EQ(mine.Get().not_stored, "");
  const std::vector<AuditEntry> lines = *other->ListAudit({}, 9);
  ASSERT_EQ(lines.size(), 1U) << "written with the setting, in the name of who gave it";
  EXPECT_EQ(lines[0].line.by.who, "ops");
  EXPECT_EQ(lines[0].line.before, "on");
  EXPECT_EQ(lines[0].line.after, "off: INC-7");
  ASSERT_TRUE(theirs.Look().ok());
  EXPECT_EQ(theirs.WhyDisabled(), "INC-7");
}

// The next write gets no answer and is carried out when the engine comes to it.
class WritesLate final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine*) override {
    late = [this, shelf, key = std::string(key), asks = before != nullptr,
            before = before == nullptr ? std::nullopt : *before,
            after = after.has_value() ? std::make_optional(std::string(*after)) : std::nullopt] {
      ForwardingStore::ChangeRecord(shelf, key, asks ? &before : nullptr, after, nullptr)
          .IgnoreError();
    };
    return absl::UnavailableError("no answer");
  }
  std::function<void()> late;
};

TEST_F(SwitchTest, AWriteWithoutAnAnswerIsNotCarriedOutBehindWhatSomebodySaidSince) {
  const auto store = OpenOne();
  WritesLate slow(*store);
  PlanningSwitch theirs(*store, true, metrics_.planning_enabled);
  ASSERT_TRUE(theirs.Set(false, "INC-7", ServerItself()).ok());
  PlanningSwitch mine(slow, true, metrics_.planning_enabled);
  ASSERT_TRUE(mine.Set(true, "", ServerItself()).ok());
  EXPECT_FALSE(mine.Get().persisted);
  ASSERT_TRUE(theirs.Set(false, "INC-8", ServerItself()).ok());
  EXPECT_TRUE(theirs.Get().persisted);
  slow.late();
  ASSERT_TRUE(theirs.Look().ok());
  EXPECT_EQ(theirs.WhyDisabled(), "INC-8");
}

TEST_F(SwitchTest, WhatCouldNotBeStoredGivesWayToWhatSomebodySaidLater) {
  const auto one = OpenOne(), other = OpenOne();
  PlanningSwitch mine(*one, true, metrics_.planning_enabled);
  PlanningSwitch theirs(*other, true, metrics_.planning_enabled);
  ASSERT_TRUE(mine.Set(false, "INC-7", ServerItself()).ok());
  {
    const FullDisk full;
    ASSERT_TRUE(mine.Set(true, "over", ServerItself()).ok());
    EXPECT_FALSE(mine.WhyDisabled().has_value());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_TRUE(theirs.Set(false, "INC-8", ServerItself()).ok());
  ASSERT_TRUE(mine.Look().ok());
  EXPECT_EQ(mine.WhyDisabled(), "INC-8")
      << "and not erased, because it was owed that planning is on";
  ASSERT_TRUE(theirs.Look().ok());
  EXPECT_EQ(theirs.WhyDisabled(), "INC-8");
}

// A store that cannot be reached, or whose answers to writes are lost, while that is said of it.
class CutOff final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                       absl::string_view key) override {
    if (away) return absl::UnavailableError("away");
    return ForwardingStore::GetRecord(shelf, key);
  }
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override {
    if (away) return absl::UnavailableError("away");
    const absl::Status done = ForwardingStore::ChangeRecord(shelf, key, before, after, line);
    return answers ? done : absl::UnavailableError("no answer");
  }
  bool away = false, answers = true;
};

TEST_F(SwitchTest, OnThatIsOwedGivesWayToOffThatWasSaidSinceWhateverTheClocksSay) {
  const auto store = OpenOne();
  for (const bool was_off : {true, false}) {
    CutOff link(*store);
    PlanningSwitch mine(link, true, metrics_.planning_enabled);
    ASSERT_TRUE(mine.Set(!was_off, "INC-7", ServerItself()).ok());
    link.away = true;
    ASSERT_TRUE(mine.Set(true, "over", ServerItself()).ok());
    EXPECT_FALSE(mine.Look().ok());
    // As a server writes it whose clock is years behind.
    ASSERT_TRUE(store->PutRecord(Shelf::kSettings, "planning-off", "1000 INC-8").ok());
    link.away = false;
    ASSERT_TRUE(mine.Look().ok());
    EXPECT_EQ(mine.WhyDisabled(), "INC-8");
    ASSERT_TRUE(mine.Look().ok());
    EXPECT_EQ(store->GetRecord(Shelf::kSettings, "planning-off")->value_or(""), "1000 INC-8");
    ASSERT_TRUE(mine.Set(true, "over", ServerItself()).ok());
    EXPECT_TRUE(mine.Get().persisted) << "said where the store can be asked, it is over all";
  }
}

TEST_F(SwitchTest, OnThatIsOwedIsOverEachOffThatThisServerKnew) {
  const auto store = OpenOne();
  CutOff link(*store);
  PlanningSwitch mine(link, true, metrics_.planning_enabled);
  ASSERT_TRUE(store->PutRecord(Shelf::kSettings, "planning-off", "9000000000000 INC-7").ok());
  ASSERT_TRUE(mine.Look().ok());
  link.away = true;
  ASSERT_TRUE(mine.Set(true, "over", ServerItself()).ok());
  link.away = false;
  ASSERT_TRUE(mine.Look().ok());
  EXPECT_FALSE(mine.WhyDisabled().has_value()) << "INC-7's clock is ahead, which says nothing";
  EXPECT_FALSE(store->GetRecord(Shelf::kSettings, "planning-off")->has_value());

  link.answers = false;
  ASSERT_TRUE(mine.Set(false, "INC-8", ServerItself()).ok());
  EXPECT_FALSE(mine.Get().persisted) << "it is there, but nobody said so";
  link.away = true;
  ASSERT_TRUE(mine.Set(true, "over", ServerItself()).ok());
  link.away = false, link.answers = true;
  ASSERT_TRUE(mine.Look().ok());
  EXPECT_FALSE(mine.WhyDisabled().has_value()) << "INC-8 was said here, and before";
  EXPECT_FALSE(store->GetRecord(Shelf::kSettings, "planning-off")->has_value());
}

}  // namespace
}  // namespace bucketd::store_test
