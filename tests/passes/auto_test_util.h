// Random steps for the tests of mode auto.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/auto/decoder.h"
#include "passes/auto/problem.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Below(int bound) { return static_cast<int>(engine_() % static_cast<uint32_t>(bound)); }
  bool OneIn(int n) { return Below(n) == 0; }
  template <typename T>
  T OneOf(const std::vector<T>& values) {
    return values[static_cast<size_t>(Below(static_cast<int>(values.size())))];
  }

 private:
  std::mt19937 engine_;
};

// Gathers of parameters and of what was computed, gradients that are reduced once or twice, shared
// casts, views, in-place and ordered ops, waits with several users and with none, two groups.
class RandomStep {
 public:
  explicit RandomStep(uint32_t seed) : random_(seed), net_(4) {
    second_ = net_.AddGroup("other", 2);
  }

  Graph Build(bool with_collectives = true) {
    for (int i = 0; i < 3; ++i) values_.push_back(net_.Input(Name("x"), {64, 64}));
    const int ops = 5 + random_.Below(60);
    for (int i = 0; i < ops; ++i) {
      AddOne(with_collectives ? random_.Below(12) : 7 + random_.Below(5));
    }
    net_.Out(values_.back(), SlotKind::kOutput);
    for (const NodeId n : outputs_) net_.Out(n, SlotKind::kParameterGradient);
    return net_.Build();
  }

 private:
  std::string Name(const char* what) { return absl::StrCat(what, next_name_++); }
  NodeId Recent() {
    const int reach = std::min(6, static_cast<int>(values_.size()));
    return values_[values_.size() - 1 - static_cast<size_t>(random_.Below(reach))];
  }
  NodeId Shard() {
    const bool second = group_is_second_;
    std::vector<NodeId>& known = shards_[second ? 1 : 0][wide_ ? 1 : 0];
    if (!known.empty() && random_.OneIn(4)) return random_.OneOf(known);
    const NodeId p = net_.Input(Name("p"), {second ? 32 : 16, 64}, Role::kParameter, Name("fqn"));
    const NodeId cast = random_.OneIn(2) ? net_.Call(Name("cast"), {p}, {second ? 32 : 16, 64}) : p;
    known.push_back(cast);
    return cast;
  }

  void AddOne(int what) {
    group_is_second_ = random_.OneIn(3);
    wide_ = random_.OneIn(4);
    net_.OnGroup(group_is_second_ ? second_ : 0).Typed(wide_ ? DType::kF32 : DType::kBF16);
    if (what <= 2) {
      const NodeId weight = net_.Gather(Name("g"), Shard());
      values_.push_back(net_.Call(Name("mm"), {Recent(), weight}, {64, 64}));
      if (random_.OneIn(3)) net_.Call(Name("dead"), {weight}, {64, 64});
    } else if (what <= 4) {
      const NodeId gradient = net_.Call(Name("gw"), {Recent()}, {64, 64});
      NodeId reduced = net_.Scatter(Name("s"), gradient);
      if (random_.OneIn(3)) reduced = net_.Reduce(Name("again"), reduced);
      if (random_.OneIn(2)) reduced = net_.View(Name("v"), reduced);
      outputs_.push_back(reduced);
    } else if (what == 5) {
      values_.push_back(net_.Reduce(Name("r"), net_.Call(Name("part"), {Recent()}, {64, 64})));
    } else if (what == 6) {
      outputs_.push_back(net_.Reduce(Name("ddp"), net_.Call(Name("gw"), {Recent()}, {64, 64})));
    } else if (what == 7) {
      const uint8_t flags = random_.OneIn(2) ? uint8_t{kOrderedFlag} : uint8_t{0};
      values_.push_back(net_.Call(Name("op"), {Recent()}, {64, 64}, flags));
    } else if (what == 8) {
      values_.push_back(net_.View(Name("v"), Recent()));
    } else if (what == 9) {
      values_.push_back(net_.Mutate(Name("add_"), Recent()));
    } else {
      const NodeId a = Recent(), b = Recent();
      values_.push_back(
          net_.Call(Name("mul"), a == b ? std::vector<NodeId>{a} : std::vector{a, b}, {64, 64}));
    }
  }

  Random random_;
  Net net_;
  GroupId second_ = 0;
  bool group_is_second_ = false, wide_ = false;  // of the next nodes
  int next_name_ = 0;
  std::vector<NodeId> values_, outputs_;
  std::vector<NodeId> shards_[2][2];  // by group and type
};

// Buckets of whatever may share one.
inline search::Partition RandomPartition(Random& random, const search::Problem& problem) {
  search::Partition partition;
  partition.bucket_of.assign(problem.transfers.size(), -1);
  std::vector<int32_t> open(Index(problem.keys), -1);
  for (size_t c = 0; c < problem.transfers.size(); ++c) {
    const search::Transfer& t = problem.transfers[c];
    if (t.use == search::Use::kInline) continue;
    int32_t& bucket = open[Index(t.key)];
    if (bucket < 0 || !t.mergeable || random.OneIn(4)) {
      bucket = static_cast<int32_t>(partition.size_of.size());
      partition.size_of.push_back(0);
      partition.form_of.push_back(static_cast<search::Form>(random.Below(4)));
    }
    partition.bucket_of[c] = bucket;
    ++partition.size_of[Index(bucket)];
  }
  return partition;
}

}  // namespace bucketd::testing
