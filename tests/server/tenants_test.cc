// What tenants may have: the file, what is taken and refused, and how computing is shared.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

#include "server/base/errors.h"
#include "server/plans/compute_queue.h"
#include "server/tenants/quotas.h"

namespace bucketd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TenantTableTest, WhatIsNotSaidIsOfTheOthersAndThenUnbounded) {
  TenantLimits unsaid;
  unsaid.most[0] = 7;
  const auto table = TenantTable::Parse(R"(
[others]
uploads = 2
[[tenant]]
name = "team-a"
weight = 3
plan_bytes = "10 GiB"
[[tenant]]
name = ""
pins = 0
graph_bytes = 5
)",
                                        "t.toml", unsaid);
  ASSERT_TRUE(table.ok()) << table.status();
  const TenantLimits a = table->Of("team-a"), none = table->Of(""), other = table->Of("x");
  EXPECT_EQ(a.weight, 3);
  EXPECT_EQ(a.of(Quota::kPlanBytes), int64_t{10} << 30);
  EXPECT_EQ(a.of(Quota::kUploads), 2);
  EXPECT_EQ(a.of(Quota::kPins), 7);
  EXPECT_EQ(a.of(Quota::kComputations), kUnbounded);
  EXPECT_EQ(none.of(Quota::kPins), 0);
  EXPECT_EQ(none.of(Quota::kGraphBytes), 5);
  EXPECT_EQ(other.of(Quota::kUploads), 2);
  EXPECT_EQ(other.weight, 1);
}

TEST(TenantTableTest, EveryMistakeIsNamedWithItsLine) {
  const auto table = TenantTable::Parse(R"([[tenant]]
name = "a"
weight = 0
[[tenant]]
name = "a"
upload = 3
plan_bytes = "many"
pins = -1
[[tenant]]
uploads = "3"
)",
                                        "t.toml", {});
  const std::string why(table.status().message());
  for (const char* said :
       {"t.toml:3: expected weight = 1 to 1000", "t.toml:5: \"a\" has an entry already",
        "t.toml:6: there is no key \"upload\"; did you mean uploads?",
        "t.toml:7: expected plan_bytes = a number of bytes, or \"10 GiB\"",
        "t.toml:8: expected pins = a number, 0 or more", "t.toml:9: expected name = \"NAME\"",
        "t.toml:10: expected uploads = a number, 0 or more"}) {
    EXPECT_THAT(why, HasSubstr(said));
  }
}

class QuotasTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }
  std::string Metrics() { return prometheus::TextSerializer().Serialize(registry_.Collect()); }
  const std::string path_ = ::testing::TempDir() + "/tenants.toml";
  prometheus::Registry registry_;
};

TEST_F(QuotasTest, WhatIsTakenComesBackAndWhatIsBeyondIsRefusedByName) {
  Write("[[tenant]]\nname = \"a\"\nuploads = 2\n");
  Quotas quotas(path_, {}, registry_);
  ASSERT_TRUE(quotas.Load().ok());
  {
    const auto one = quotas.Take(Quota::kUploads, "a"), two = quotas.Take(Quota::kUploads, "a");
    ASSERT_TRUE(one.ok() && two.ok());
    const absl::Status third = quotas.Take(Quota::kUploads, "a").status();
    EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(third), "QUOTA_USED_UP");
    EXPECT_THAT(std::string(third.message()),
                AllOf(HasSubstr("tenant \"a\" has used up its quota uploads: 2 uploads at a time "
                                "are allowed, and it has 2. come again"),
                      HasSubstr(path_)));
    EXPECT_TRUE(quotas.Take(Quota::kComputations, "a").ok()) << "unbounded";
    EXPECT_TRUE(quotas.Take(Quota::kUploads, "b").ok()) << "another's";
    EXPECT_EQ(quotas.UsedOf(Quota::kUploads, "a"), 2);
    EXPECT_THAT(Metrics(), HasSubstr("quota_used{quota=\"uploads\",tenant=\"a\"} 2"));
  }
  EXPECT_EQ(quotas.UsedOf(Quota::kUploads, "a"), 0);
  EXPECT_TRUE(quotas.Take(Quota::kUploads, "a").ok());
  EXPECT_THAT(Metrics(), AllOf(HasSubstr("refusals_total{quota=\"uploads\",tenant=\"a\"} 1"),
                               HasSubstr("quota_used{quota=\"uploads\",tenant=\"a\"} 0")));
}

TEST_F(QuotasTest, AFileThatChangesIsTakenAndOneThatIsNoGoodIsNot) {
  Write("[[tenant]]\nname = \"a\"\nuploads = 1\n");
  Quotas quotas(path_, {}, registry_);
  ASSERT_TRUE(quotas.Load().ok());
  const auto held = quotas.Take(Quota::kUploads, "b");
  EXPECT_THAT(Metrics(), HasSubstr("quota_used{quota=\"uploads\",tenant=\"(others)\"} 1"));
  Write("[[tenant]]\nname = \"a\"\nuploads = \"no\"\n");
  quotas.Look();
  EXPECT_EQ(quotas.LimitOf(Quota::kUploads, "a"), 1);
  Write("[[tenant]]\nname = \"b\"\nweight = 2\nuploads = 40\n");
  quotas.Look();
  EXPECT_EQ(quotas.LimitOf(Quota::kUploads, "a"), kUnbounded);
  EXPECT_EQ(quotas.LimitOf(Quota::kUploads, "b"), 40);
  EXPECT_EQ(quotas.WeightOf("b"), 2);
  EXPECT_THAT(Metrics(), AllOf(HasSubstr("quota_used{quota=\"uploads\",tenant=\"b\"} 1"),
                               HasSubstr("quota_used{quota=\"uploads\",tenant=\"(others)\"} 0"),
                               HasSubstr("quota_limit{quota=\"uploads\",tenant=\"b\"} 40"),
                               Not(HasSubstr("tenant=\"a\""))));
}

// Who had run when `count` works of two tenants that want the only slot had.
std::vector<std::string> FirstOf(size_t count, int64_t weight_of_a, bool b_comes_from_many_hosts) {
  std::mutex mutex;
  std::vector<std::string> ran;
  {
    ComputeQueue queue(1, 1000);
    std::mutex gate;
    gate.lock();
    const auto submit = [&](ComputeQueue::Id id, WorkShare share, const std::string& name) {
      queue.Submit({id, std::move(share), 100, [&, name](const std::atomic<bool>&) {
                      if (name == "first") gate.lock();  // until all wait
                      const std::lock_guard lock(mutex);
                      ran.push_back(name);
                    }});
    };
    submit(1, {{"tenant c", "peer"}}, "first");
    for (ComputeQueue::Id id = 2; id < 82; id += 2) {
      const std::string host = b_comes_from_many_hosts ? absl::StrCat("peer ", id) : "peer";
      submit(id, {{"tenant b", host}}, "b");
      submit(id + 1, {{"tenant a", "peer"}, weight_of_a}, "a");
    }
    gate.unlock();
    while (true) {
      const std::lock_guard lock(mutex);
      if (ran.size() > count) break;
    }
  }
  ran.erase(ran.begin());
  ran.resize(count);
  return ran;
}

TEST(ComputeShareTest, TenantsShareTheSlotsByWeightWhateverHostsTheyHave) {
  const auto of_a = [](const std::vector<std::string>& ran) {
    return std::count(ran.begin(), ran.end(), "a");
  };
  EXPECT_EQ(of_a(FirstOf(20, 1, false)), 10);
  EXPECT_EQ(of_a(FirstOf(20, 1, true)), 10);
  EXPECT_EQ(of_a(FirstOf(20, 3, true)), 15);
}

}  // namespace
}  // namespace bucketd
