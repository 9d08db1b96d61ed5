// Which storages nodes make and stand on, tensor by tensor.
#include "passes/plan/storage.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/text/bir.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Graph Parse(const std::string& nodes) {
  auto parsed = ParseBir(absl::StrCat("graph @g forward mesh(dp=4) {\n", nodes, "}\n"));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return std::move(parsed->graph);
}

Storages AllOf(const Graph& graph) {
  Storages storages(graph);
  for (NodeId n = 0; n < graph.size(); ++n) storages.Add(n);
  return storages;
}

constexpr NodeId kX = 0;

TEST(Storages, ViewsAndWaitsStandOnWhatTheyAlias) {
  const Graph graph = Parse(
      "  %x = input : f32[4]\n"
      "  %v = view(%x) view\n"
      "  %g = all_gather(%v)\n"
      "  %w = wait(%g)\n"
      "  return %w\n");
  const Storages storages = AllOf(graph);
  EXPECT_EQ(storages.of(1), storages.of(kX));
  EXPECT_EQ(storages.own_count(1), 0);
  EXPECT_EQ(storages.of(3), storages.of(2));
  EXPECT_EQ(storages.own_bytes(2), 64);
}

TEST(Storages, AGetitemIsOnePieceOfWhatItsSourceMade) {
  const Graph graph = Parse(
      "  %x = input : f32[4]\n"
      "  %two = split(%x) : f32[1], f32[3]\n"
      "  %a = getitem(%two) index=0\n"
      "  %b = getitem(%two) index=1\n"
      "  return %a, %b\n");
  const Storages storages = AllOf(graph);
  EXPECT_EQ(storages.bytes(storages.of(2)), 4);
  EXPECT_EQ(storages.bytes(storages.of(3)), 12);
  EXPECT_THAT(storages.parts(storages.of(1)), ElementsAre(storages.of(2), storages.of(3)));
  EXPECT_EQ(storages.own_count(3), 0);
}

TEST(Storages, AGetitemOfATupleOfViewsStandsOnAllThatTheTupleDoes) {
  const Graph graph = Parse(
      "  %x = input : f32[4]\n"
      "  %two = split(%x) view : f32[2], f32[2]\n"
      "  %b = getitem(%two) index=1\n"
      "  return %b\n");
  const Storages storages = AllOf(graph);
  EXPECT_EQ(storages.of(2), storages.of(kX));
}

TEST(Storages, ACollectiveInPlaceMakesItsResultAndStandsOnWhatItWrites) {
  const Graph graph = Parse(
      "  %x = input : f32[4]\n"
      "  %r = all_reduce(%x) mutates(%x)\n"
      "  %w = wait(%r)\n"
      "  return %w\n");
  const Storages storages = AllOf(graph);
  EXPECT_EQ(storages.own_bytes(1), 16);
  EXPECT_THAT(storages.parts(storages.of(2)), ElementsAre(storages.of(kX), storages.first_own(1)));
}

TEST(Storages, ParametersWeighNothingBecauseTheyLiveBesideTheStep) {
  const Graph graph = Parse(
      "  %p = param(w) : f32[4]\n"
      "  %x = input : f32[4]\n"
      "  return %p, %x\n");
  const Storages storages = AllOf(graph);
  EXPECT_EQ(storages.own_bytes(0), 0);
  EXPECT_EQ(storages.own_bytes(1), 16);
}

TEST(Storages, WhatABucketProvidesIsWhatItsReadersStandOn) {
  const Graph graph = Parse(
      "  %x = input : f32[4]\n"
      "  %g = all_gather(%x)\n"
      "  %w = wait(%g)\n"
      "  %v = view(%w) view\n"
      "  return %v\n");
  Storages storages(graph);
  storages.Add(0);
  const Storages::SetId flat = storages.Make(256);
  storages.Put(2, flat);
  storages.Add(3);
  EXPECT_EQ(storages.of(3), flat);
  EXPECT_EQ(storages.of(1), Storages::kNone);
  EXPECT_EQ(storages.Union({}), Storages::kNone);
  EXPECT_THAT(storages.parts(flat), IsEmpty());
}

}  // namespace
}  // namespace bucketd
