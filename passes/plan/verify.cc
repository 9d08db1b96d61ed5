#include "passes/plan/verify.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/plan/placement.h"

namespace bucketd {
namespace internal {

void Violations::Add(std::string line) {
  if (count_++ < kMax) lines_.push_back(std::move(line));
}

std::string Violations::Text() const {
  std::string text = absl::StrJoin(lines_, "\n");
  if (count_ > kMax) absl::StrAppend(&text, "\nand ", count_ - kMax, " more");
  return text;
}

}  // namespace internal

namespace {

using internal::kNowhere;
using internal::Placement;
using internal::Violations;

size_t At(int32_t i) { return static_cast<size_t>(i); }

// Steps are spread this far apart, so that the members of a bucket have places of their own.
constexpr int64_t kStepWidth = int64_t{1} << 31;

class Verifier {
 public:
  Verifier(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {
    placement_.of_node.assign(At(graph.size()), kNowhere);
    placement_.bucket_of.assign(At(graph.size()), -1);
    start_place_.assign(plan.buckets.size(), kNowhere);
    wait_place_.assign(plan.buckets.size(), kNowhere);
  }

  absl::Status Run() {
    CheckBuckets();
    RETURN_IF_ERROR(Result());
    CheckLayout();
    CheckOrder();
    RETURN_IF_ERROR(Result());
    PlaceMembers();
    CheckEdges();
    CheckOrdered();
    RETURN_IF_ERROR(Result());
    RETURN_IF_ERROR(internal::CheckInPlace(graph_, placement_, bad_));
    return Result();
  }

 private:
  absl::Status Result() const {
    return bad_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(bad_.Text());
  }

  const Collective& CollectiveAt(NodeId start) const {
    return graph_.collective(graph_.collective_of(start));
  }

  void CheckBuckets() {
    for (size_t k = 0; k < plan_.buckets.size(); ++k) {
      const Bucket& bucket = plan_.buckets[k];
      if (bucket.mode != BucketMode::kPacked && bucket.mode != BucketMode::kGrouped) {
        bad_.Add(absl::StrCat("bucket ", k, ": its mode is neither packed nor grouped"));
      }
      if (bucket.copies != CopyStream::kCompute && bucket.copies != CopyStream::kComm) {
        bad_.Add(absl::StrCat("bucket ", k, ": its copies are neither on compute nor on comm"));
      }
      if (bucket.members.size() < 2) {
        bad_.Add(absl::StrCat("bucket ", k, ": has ", bucket.members.size(),
                              " members, needs two or more"));
      }
      bool known = true;
      for (const NodeId member : bucket.members) {
        known = CheckMember(static_cast<BucketId>(k), member) && known;
      }
      if (known) CheckAgreement(static_cast<BucketId>(k));
    }
  }

  bool CheckMember(BucketId k, NodeId member) {
    if (member < 0 || member >= graph_.size()) {
      bad_.Add(absl::StrCat("bucket ", k, ": there is no node ", member));
      return false;
    }
    if (graph_.kind(member) != NodeKind::kCollective) {
      bad_.Add(absl::StrCat("bucket ", k, ": ", graph_.Describe(member), " is not a collective"));
      return false;
    }
    BucketId& owner = placement_.bucket_of[At(member)];
    if (owner == k) {
      bad_.Add(absl::StrCat("bucket ", k, ": ", graph_.Describe(member), " is a member twice"));
    } else if (owner >= 0) {
      bad_.Add(absl::StrCat("bucket ", k, ": ", graph_.Describe(member), " is already in bucket ",
                            owner));
    }
    owner = k;
    const NodeId wait = CollectiveAt(member).wait;
    if (wait == kNoNode) {
      bad_.Add(absl::StrCat("bucket ", k, ": nobody waits for ", graph_.Describe(member)));
      return false;
    }
    placement_.bucket_of[At(wait)] = k;
    return true;
  }

  void CheckAgreement(BucketId k) {
    const Bucket& bucket = plan_.buckets[At(k)];
    if (bucket.members.empty()) return;
    const Collective& first = CollectiveAt(bucket.members.front());
    if (first.kind != CollectiveKind::kAllGather && first.kind != CollectiveKind::kReduceScatter &&
        first.kind != CollectiveKind::kAllReduce) {
      bad_.Add(absl::StrCat("bucket ", k, ": ", graph_.Describe(first.start), " is of kind ",
                            Name(first.kind), ", which cannot be bucketed"));
    }
    for (const NodeId member : bucket.members) {
      const Collective& c = CollectiveAt(member);
      if (c.kind != first.kind || c.group != first.group || c.reduce_op != first.reduce_op ||
          c.dtype != first.dtype) {
        bad_.Add(absl::StrCat("bucket ", k, ": ", graph_.Describe(first.start), " and ",
                              graph_.Describe(member),
                              " differ in kind, group, reduce op or dtype"));
        return;
      }
    }
  }

  void CheckLayout() {
    for (size_t k = 0; k < plan_.buckets.size(); ++k) {
      const Bucket& bucket = plan_.buckets[k];
      if (bucket.offsets.empty()) continue;
      Bucket expected;
      expected.members = bucket.members;
      LayOut(graph_, expected);
      if (bucket.offsets != expected.offsets || bucket.slice_bytes != expected.slice_bytes ||
          bucket.bytes != expected.bytes) {
        bad_.Add(absl::StrCat("bucket ", k,
                              ": offsets are not those of its members back to back (a slice of ",
                              expected.slice_bytes, " bytes, ", expected.bytes, " in all)"));
      }
    }
  }

  void CheckOrder() {
    for (size_t i = 0; i < plan_.order.size(); ++i) {
      const Step& step = plan_.order[i];
      const int64_t place = static_cast<int64_t>(i) * kStepWidth;
      switch (step.kind) {
        case Step::Kind::kNode:
          PlaceNode(step.id, place);
          break;
        case Step::Kind::kStart:
          PlaceToken("start", step.id, place, start_place_);
          break;
        case Step::Kind::kWait:
          PlaceToken("wait", step.id, place, wait_place_);
          break;
        default:
          bad_.Add(absl::StrCat("order: step ", i, " is of no known kind"));
          break;
      }
    }
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (placement_.bucket(n) < 0 && placement_.place(n) == kNowhere) {
        bad_.Add(absl::StrCat("order: ", graph_.Describe(n), " is missing"));
      }
    }
    for (size_t k = 0; k < plan_.buckets.size(); ++k) {
      if (start_place_[k] == kNowhere) bad_.Add(absl::StrCat("order: start:", k, " is missing"));
      if (wait_place_[k] == kNowhere) bad_.Add(absl::StrCat("order: wait:", k, " is missing"));
    }
  }

  void PlaceNode(NodeId n, int64_t place) {
    if (n < 0 || n >= graph_.size()) {
      bad_.Add(absl::StrCat("order: there is no node ", n));
    } else if (placement_.bucket(n) >= 0) {
      bad_.Add(
          absl::StrCat("order: ", graph_.Describe(n), " is inside bucket ", placement_.bucket(n)));
    } else if (placement_.place(n) != kNowhere) {
      bad_.Add(absl::StrCat("order: ", graph_.Describe(n), " stands twice"));
    } else {
      placement_.of_node[At(n)] = place;
    }
  }

  void PlaceToken(absl::string_view token, BucketId k, int64_t place,
                  std::vector<int64_t>& places) {
    if (k < 0 || At(k) >= plan_.buckets.size()) {
      bad_.Add(absl::StrCat("order: ", token, ":", k, " names no bucket; there are ",
                            plan_.buckets.size()));
    } else if (places[At(k)] != kNowhere) {
      bad_.Add(absl::StrCat("order: ", token, ":", k, " stands twice"));
    } else {
      places[At(k)] = place;
    }
  }

  void PlaceMembers() {
    for (size_t k = 0; k < plan_.buckets.size(); ++k) {
      int64_t position = 0;
      for (const NodeId member : plan_.buckets[k].members) {
        placement_.of_node[At(member)] = start_place_[k];
        placement_.of_node[At(CollectiveAt(member).wait)] = wait_place_[k] + position++;
      }
    }
  }

  void CheckEdges() {
    for (size_t k = 0; k < plan_.buckets.size(); ++k) {
      if (wait_place_[k] < start_place_[k]) {
        bad_.Add(absl::StrCat("order: wait:", k, " stands before start:", k));
      }
    }
    for (NodeId n = 0; n < graph_.size(); ++n) {
      const bool wait_of_member = placement_.bucket(n) >= 0 && graph_.kind(n) == NodeKind::kWait;
      if (wait_of_member) continue;
      for (const NodeId x : graph_.inputs(n)) {
        if (placement_.bucket(x) >= 0 && graph_.kind(x) == NodeKind::kCollective) {
          bad_.Add(absl::StrCat("order: ", graph_.Describe(n), " reads ", graph_.Describe(x),
                                ", which is inside bucket ", placement_.bucket(x),
                                ", without waiting for it"));
        } else if (placement_.place(x) >= placement_.place(n)) {
          bad_.Add(absl::StrCat("order: ", graph_.Describe(n), InBucket(n),
                                " runs before its input ", graph_.Describe(x), InBucket(x)));
        }
      }
    }
  }

  std::string InBucket(NodeId n) const {
    const BucketId k = placement_.bucket(n);
    return k < 0 ? std::string() : absl::StrCat(" in bucket ", k);
  }

  void CheckOrdered() {
    NodeId last = kNoNode;
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (!graph_.is_ordered(n)) continue;
      if (last != kNoNode && placement_.place(n) < placement_.place(last)) {
        bad_.Add(absl::StrCat("ordered: ", graph_.Describe(n), " runs before ",
                              graph_.Describe(last),
                              "; random and effectful ops keep their relative order"));
      }
      last = n;
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  Placement placement_;
  std::vector<int64_t> start_place_, wait_place_;
  Violations bad_;
};

}  // namespace

absl::Status VerifyPlan(const Graph& graph, const Plan& plan) {
  return Verifier(graph, plan).Run();
}

}  // namespace bucketd
