// The file of a token, as calls find it.
#include "client/token_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace bucketd::client {
namespace {

TEST(TokenFileTest, WhatCannotBeReadIsAnErrorAndNoEnd) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/token");
  std::filesystem::remove_all(path);
  TokenFile file(path);
  EXPECT_EQ(file.Get().status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directory(path);
  const absl::Status folder = file.Get().status();
  EXPECT_EQ(folder.message(), absl::StrCat(path, ": cannot be read: Is a directory"));
  std::filesystem::remove(path);
  std::ofstream(path) << " a.b.c\n";
  EXPECT_EQ(file.Get().value_or(""), "a.b.c");
  std::ofstream(path) << std::string(7169, 'a');
  EXPECT_EQ(file.Get().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bucketd::client
