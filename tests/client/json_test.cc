#include "client/cli/json.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bucketd {
namespace {

TEST(JsonTest, MembersStandInTheOrderInWhichTheyAreGivenOneALine) {
  const std::vector<int> ids = {3, 1};
  const Json object = Json::Object({{"z", 1},
                                    {"a", Json()},
                                    {"ids", Json::List(ids)},
                                    {"inner", Json::Object({{"b", true}, {"a", "x"}})}});
  EXPECT_EQ(object.Text(),
            "{\"z\": 1,\n \"a\": null,\n \"ids\": [3, 1],\n \"inner\": {\"b\": true, \"a\": "
            "\"x\"}}\n");
}

TEST(JsonTest, EntriesOfAListOfObjectsStandOneALine) {
  const auto entry = [](int k) {
    return Json::Object({{"k", k}, {"of", Json::List(std::vector<int>{k})}});
  };
  EXPECT_EQ(Json::Object({{"rows", Json::List(std::vector<int>{1, 2}, entry)}}).Text(),
            "{\"rows\": [{\"k\": 1, \"of\": [1]},\n  {\"k\": 2, \"of\": [2]}]}\n");
}

TEST(JsonTest, MergedMembersFollow) {
  Json object = Json::Object({{"a", 1}});
  object.Merge(Json::Object({{"c", 2}, {"b", 3}})).Set("d", 4);
  EXPECT_EQ(object.Text(), "{\"a\": 1,\n \"c\": 2,\n \"b\": 3,\n \"d\": 4}\n");
}

TEST(JsonTest, MicrosecondsAreExact) {
  EXPECT_EQ(Json::Us(999'999'999'999'999).Text(), "999999999.999999\n");
  EXPECT_EQ(Json::Us(1).Text(), "1e-06\n");
  EXPECT_EQ(Json::Us(12'000'000).Text(), "12.0\n");
  EXPECT_EQ(Json::Number("0.1250").Text(), "0.125\n");
}

TEST(JsonTest, TextIsEscapedAndWhatIsNoUtf8IsReplaced) {
  EXPECT_EQ(Json("a\"\\\n\x01").Text(), "\"a\\\"\\\\\\n\\u0001\"\n");
  EXPECT_EQ(Json(absl::string_view("\xff", 1)).Text(), "\"\xef\xbf\xbd\"\n");
}

}  // namespace
}  // namespace bucketd
