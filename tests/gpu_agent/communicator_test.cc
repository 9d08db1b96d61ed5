// What every communicator refuses before a byte moves.
#include "gpu_agent/comm/communicator.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bucketd::agent {
namespace {

using testing::HasSubstr;

class ValidateTest : public testing::Test {
 protected:
  void ExpectRefused(const Collective& collective, const std::string& why) {
    const absl::Status status = Validate(collective, 4);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  std::byte memory_[256];
  Collective gather_ = {.kind = CollectiveKind::kAllGather,
                        .in = memory_,
                        .out = memory_ + 16,
                        .count = 4,
                        .dtype = DType::kF32};
  Collective scatter_ = {.kind = CollectiveKind::kReduceScatter,
                         .in = memory_,
                         .out = memory_ + 64,
                         .count = 4,
                         .dtype = DType::kF32,
                         .op = ReduceOp::kAvg};
};

TEST_F(ValidateTest, TakesWhatIsWhole) {
  EXPECT_TRUE(Validate(gather_, 4).ok());
  EXPECT_TRUE(Validate(scatter_, 4).ok());
  gather_.count = 0;
  gather_.in = gather_.out = nullptr;
  EXPECT_TRUE(Validate(gather_, 4).ok());
}

TEST_F(ValidateTest, RefusesWhatNoCommunicatorDoes) {
  Collective wrong = gather_;
  wrong.kind = CollectiveKind::kBroadcast;
  ExpectRefused(wrong, "expected all_gather");
  wrong = gather_;
  wrong.dtype = DType::kUnspecified;
  ExpectRefused(wrong, "dtype is not known");
  wrong.dtype = static_cast<DType>(99);
  ExpectRefused(wrong, "dtype is not known");
  wrong = gather_;
  wrong.op = ReduceOp::kSum;
  ExpectRefused(wrong, "no reduce op");
  wrong = gather_;
  wrong.in = nullptr;
  ExpectRefused(wrong, "null pointer");
  EXPECT_FALSE(Validate(gather_, 0).ok());
}

TEST_F(ValidateTest, CountsAreBounded) {
  gather_.count = -1;
  ExpectRefused(gather_, "expected 0 to 2^46");
  gather_.count = (int64_t{1} << 42) + 1;
  ExpectRefused(gather_, "expected 0 to 2^46");
  gather_.count = INT64_MAX;
  ExpectRefused(gather_, "expected 0 to 2^46");
  gather_.count = int64_t{1} << 42;
  EXPECT_TRUE(Validate(gather_, 4).ok());
}

TEST_F(ValidateTest, OpsFitTheirDtypes) {
  const auto takes = [this](DType dtype, ReduceOp op) {
    scatter_.dtype = dtype;
    scatter_.op = op;
    return Validate(scatter_, 4).ok();
  };
  EXPECT_FALSE(takes(DType::kF32, ReduceOp::kNone));
  EXPECT_FALSE(takes(DType::kF32, ReduceOp::kBxor));
  EXPECT_TRUE(takes(DType::kBool, ReduceOp::kBxor));
  EXPECT_FALSE(takes(DType::kI32, ReduceOp::kAvg));
  EXPECT_TRUE(takes(DType::kF8E4M3, ReduceOp::kAvg));
  EXPECT_TRUE(takes(DType::kC64, ReduceOp::kAvg));
  EXPECT_FALSE(takes(DType::kC64, ReduceOp::kMax));
  EXPECT_FALSE(takes(DType::kF32, static_cast<ReduceOp>(99)));
}

TEST_F(ValidateTest, InAndOutOverlapInPlaceOrNotAtAll) {
  const auto takes = [](const Collective& collective, int rank) {
    return ValidateGroup({collective}, rank, 4).ok();
  };
  EXPECT_TRUE(takes(gather_, 1));
  EXPECT_TRUE(takes(scatter_, 1));
  gather_.out = memory_;  // so in is the part of rank 0
  EXPECT_TRUE(takes(gather_, 0));
  EXPECT_FALSE(takes(gather_, 1));
  gather_.in = memory_ + 16;
  EXPECT_TRUE(takes(gather_, 1));
  EXPECT_FALSE(takes(gather_, 0));
  scatter_.out = memory_ + 48;
  EXPECT_TRUE(takes(scatter_, 3));
  EXPECT_FALSE(takes(scatter_, 2));
  scatter_.kind = CollectiveKind::kAllReduce;
  scatter_.out = memory_ + 12;
  EXPECT_FALSE(takes(scatter_, 0));
  scatter_.out = memory_;
  EXPECT_TRUE(takes(scatter_, 3));
  scatter_.out = memory_ + 16;
  EXPECT_TRUE(takes(scatter_, 3));
}

}  // namespace
}  // namespace bucketd::agent
