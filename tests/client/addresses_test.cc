// What an address is, and in which order servers are asked.
#include "client/addresses.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace bucketd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Addresses, OneThatIsNoneIsNamed) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"planner", "planner"},
      {"a:9460,b", "b"},
      {"a:9460,,b:9460", ""},
      {"a:9460,b:0", "b:0"},
      {"a:9460,b:65536", "b:65536"},
      {"a:9460,b:123456", "b:123456"},
      {"a:9460,http://b:9460", "http://b:9460"},
      {"a:9460,dns://b:9460", "dns://b:9460"},
      {"a:9460,dns:///b", "dns:///b"},
      {"::1:9460", "::1:9460"},
      {"[::1:9460", "[::1:9460"},
      {"unix:", "unix:"},
      {"a:9460, b c:9460", "b c:9460"},
      {"a:,b:9460", "a:"},
      {"", ""},
  };
  for (const auto& [text, wrong] : table) {
    const absl::Status status = ParseAddresses(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat("\"", wrong, "\""))) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("expected HOST:PORT, unix:/path, dns:///NAME:PORT"));
    EXPECT_EQ(WrongInAddresses(text), status.message());
  }
  EXPECT_EQ(WrongInAddresses("a:9460,b:9460,a:9460"),
            "\"a:9460\" is twice in \"a:9460,b:9460,a:9460\"");
  EXPECT_EQ(WrongInAddresses("a:9460,b:9460"), "");
}

TEST(Addresses, ListsAreTakenAsPeopleWriteThem) {
  const auto found = ParseAddresses("a:9460, [::1]:9460 ,unix:/run/bucketd,dns:///planners:9460");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found,
              ElementsAre("a:9460", "[::1]:9460", "unix:/run/bucketd", "dns:///planners:9460"));
}

std::string Letters(const std::vector<ServerAddress>& servers) {
  std::string letters;
  for (const ServerAddress& server : servers) letters += server.target[0];
  return letters;
}

// tests/python/test_addresses.py has the same: ranks of one job may have clients of both kinds.
TEST(Addresses, TheOrderIsThatOfTheOtherClients) {
  const std::vector<ServerAddress> servers = {{"a:9460"}, {"b:9460"}, {"c:9460"}};
  EXPECT_EQ(Letters(InOrder(servers, "job//train")), "acb");
  EXPECT_EQ(Letters(InOrder({servers[2], servers[1], servers[0]}, "job//train")), "acb");
  EXPECT_EQ(Letters(InOrder(servers, "job//eval")), "cab");
  EXPECT_EQ(Letters(InOrder(servers, "graph/00")), "bac");
  EXPECT_EQ(Letters(InOrder({servers[2], servers[1], servers[0]}, "")), "cba") << "as listed";
}

TEST(Addresses, NamesAreLookedUp) {
  const auto found = LookUp("dns:///localhost:9460", std::chrono::seconds(30));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_NE(std::find(found->begin(), found->end(), ServerAddress{"127.0.0.1:9460", "localhost"}),
            found->end());
  const absl::Status unknown =
      LookUp("dns:///no-such-planner.invalid:9460", std::chrono::seconds(30)).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("dns:///no-such-planner.invalid:9460: the name is not known: "));
}

}  // namespace
}  // namespace bucketd::client
