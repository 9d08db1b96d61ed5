// Who gives way where something that is bounded is full.
#include "server/base/shares.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace bucketd {
namespace {

using Ids = std::vector<Shares::Id>;

TEST(SharesTest, WhoHoldsMostGivesTheNewestUpToWhoHoldsLess) {
  Shares shares;
  for (const Shares::Id id : Ids{1, 2, 3}) shares.Add({"b", "x"}, id);
  EXPECT_EQ(shares.GivesWayTo({"a", "x"}), 3U);
  EXPECT_EQ(shares.GivesWayTo({"b", "x"}), 0U);
  shares.Add({"a", "x"}, 4);
  EXPECT_EQ(shares.GivesWayTo({"a", "x"}), 3U) << "three against two";
  shares.Remove({"b", "x"}, 3);
  EXPECT_EQ(shares.GivesWayTo({"a", "x"}), 0U) << "two against two";
}

TEST(SharesTest, WhereTheCoarseOnesAreEvenThePartsOfOnesOwnAreCompared) {
  Shares shares;
  for (const Shares::Id id : Ids{1, 2, 3}) shares.Add({"a", "x"}, id);
  for (const Shares::Id id : Ids{4, 5, 6}) shares.Add({"b", "x"}, id);
  EXPECT_EQ(shares.GivesWayTo({"a", "y"}), 3U);
  EXPECT_EQ(shares.GivesWayTo({"a", "x"}), 0U);
  EXPECT_EQ(shares.GivesWayTo({"c", "x"}), 6U) << "of equal ones always the same";
}

TEST(SharesTest, WhatNobodyNeedsGoesFirstOfWhoHoldsMost) {
  Shares shares;
  for (const Shares::Id id : Ids{1, 2, 3, 4}) shares.Add({"b", "x"}, id);
  shares.Add({"b", "y"}, 5);
  shares.Add({"a", "x"}, 6);
  shares.SetSpare({"b", "x"}, 3, 11);
  shares.SetSpare({"b", "x"}, 2, 12);
  shares.SetSpare({"b", "y"}, 5, 10);
  shares.SetSpare({"a", "x"}, 6, 1);
  EXPECT_EQ(shares.GivesWayTo({"a", "x"}), 3U) << "spare for longest, of the larger part";
  shares.SetNeeded({"b", "x"}, 3, 11);
  EXPECT_EQ(shares.GivesWayTo({"a", "x"}), 2U);
  shares.SetNeeded({"b", "x"}, 2, 12);
  EXPECT_EQ(shares.GivesWayTo({"a", "x"}), 5U) << "before what the larger part needs";
  shares.SetNeeded({"b", "y"}, 5, 10);
  EXPECT_EQ(shares.GivesWayTo({"a", "x"}), 4U);
  EXPECT_EQ(shares.GivesWayTo({"b", "x"}), 0U) << "a has less, and keeps what it does not need";
}

TEST(SharesTest, WhereAllAreEvenWhatNobodyNeedsGoesAndNothingElse) {
  Shares shares;
  for (const Shares::Id id : Ids{1, 2, 3}) shares.Add({"x", std::to_string(id)}, id);
  for (const Shares::Id id : Ids{4, 5, 6}) shares.Add({"y", std::to_string(id)}, id);
  EXPECT_EQ(shares.GivesWayTo({"x", "9"}), 0U);
  shares.SetSpare({"x", "2"}, 2, 1);
  EXPECT_EQ(shares.GivesWayTo({"x", "9"}), 2U);
  EXPECT_EQ(shares.GivesWayTo({"x", "2"}), 2U) << "its own";
  EXPECT_EQ(shares.SpareOf({"x", "2"}), 2U);
  EXPECT_EQ(shares.SpareOf({"x", "9"}), 0U);
  EXPECT_EQ(shares.GivesWayTo({"y", "4"}), 0U) << "who has as much";
}

TEST(SharesTest, WhatWeighsMostGoesFirstOfWhoHoldsMost) {
  Shares shares;
  shares.Add({"b"}, 1, 500);
  shares.Add({"b"}, 2, 3);
  for (const Shares::Id id : Ids{3, 4, 5, 6}) shares.Add({"a"}, id, 100);
  EXPECT_EQ(shares.GivesWayTo({"a"}), 1U);
  shares.Remove({"b"}, 1, 500);
  EXPECT_EQ(shares.GivesWayTo({"c"}), 6U);
}

TEST(SharesTest, HostsComeBeforeTenantsThatAnybodyMayName) {
  EXPECT_EQ(ShareOf("t", "h", true), (Shares::Path{"tenant t", "peer h"}));
  EXPECT_EQ(ShareOf("t", "h", false), (Shares::Path{"peer h", "tenant t"}));
}

}  // namespace
}  // namespace bucketd
