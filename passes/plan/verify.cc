#include "passes/plan/verify.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/ir/bucket_key.h"
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

// Steps are spread this far apart, so that the members of a bucket have places of their own.
constexpr int64_t kStepWidth = int64_t{1} << 31;

class Verifier {
 public:
  Verifier(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {
    placement_.of_node.assign(Index(graph.size()), kNowhere);
    placement_.bucket_of.assign(Index(graph.size()), -1);
    start_place_.assign(plan.buckets.size(), kNowhere);
    wait_place_.assign(plan.buckets.size(), kNowhere);
  }

  absl::Status Run() {
    // Each part takes for granted what the ones before it hold.
    Hold({&Verifier::ModeIsKnown, &Verifier::CopiesAreKnown, &Verifier::HasTwoMembers,
          &Verifier::MembersAreCollectivesWithAWait});
    RETURN_IF_ERROR(Result());
    Hold({&Verifier::MembersAreInOneBucket});
    RETURN_IF_ERROR(Result());
    Hold({&Verifier::KindCanBeBucketed, &Verifier::MembersAgree, &Verifier::LayoutIsBackToBack});
    StepsAreKnownAndOnce();
    NodesStand();
    Hold({&Verifier::TokensStand});
    RETURN_IF_ERROR(Result());
    PlaceMembers();
    Hold({&Verifier::WaitFollowsItsStart, &Verifier::ReadersOfMembersWait});
    NodesFollowTheirInputs();
    OrderedOpsKeepTheirOrder();
    RETURN_IF_ERROR(Result());
    RETURN_IF_ERROR(internal::CheckInPlace(graph_, placement_, bad_));
    return Result();
  }

 private:
  using OfBucket = void (Verifier::*)(size_t k, const Bucket& bucket);

  void Hold(std::initializer_list<OfBucket> invariants) {
    for (const OfBucket invariant : invariants) {
      for (size_t k = 0; k < plan_.buckets.size(); ++k) (this->*invariant)(k, plan_.buckets[k]);
    }
  }

  absl::Status Result() const {
    return bad_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(bad_.Text());
  }

  const Collective& CollectiveAt(NodeId start) const {
    return graph_.collective(graph_.collective_of(start));
  }

  template <typename... Parts>
  void BadBucket(size_t k, const Parts&... parts) {
    bad_.Add(absl::StrCat("bucket ", k, ": ", parts...));
  }
  template <typename... Parts>
  void BadOrder(const Parts&... parts) {
    bad_.Add(absl::StrCat("order: ", parts...));
  }

  void ModeIsKnown(size_t k, const Bucket& bucket) {
    if (bucket.mode != BucketMode::kPacked && bucket.mode != BucketMode::kGrouped) {
      BadBucket(k, "its mode is neither packed nor grouped");
    }
  }

  void CopiesAreKnown(size_t k, const Bucket& bucket) {
    if (bucket.copies != CopyStream::kCompute && bucket.copies != CopyStream::kComm) {
      BadBucket(k, "its copies are neither on compute nor on comm");
    }
  }

  void HasTwoMembers(size_t k, const Bucket& bucket) {
    if (bucket.members.size() < 2) {
      BadBucket(k, "has ", bucket.members.size(), " members, needs two or more");
    }
  }

  void MembersAreCollectivesWithAWait(size_t k, const Bucket& bucket) {
    for (const NodeId member : bucket.members) {
      if (member < 0 || member >= graph_.size()) {
        BadBucket(k, "there is no node ", member);
      } else if (graph_.kind(member) != NodeKind::kCollective) {
        BadBucket(k, graph_.Describe(member), " is not a collective");
      } else if (CollectiveAt(member).wait == kNoNode) {
        BadBucket(k, "nobody waits for ", graph_.Describe(member));
      } else if (CollectiveAt(member).symbolic) {
        BadBucket(k, graph_.Describe(member), " has a symbolic size");
      }
    }
  }

  // Finds out who is in which bucket on the way.
  void MembersAreInOneBucket(size_t k, const Bucket& bucket) {
    const auto id = static_cast<BucketId>(k);
    for (const NodeId member : bucket.members) {
      BucketId& owner = placement_.bucket_of[Index(member)];
      if (owner == id) {
        BadBucket(k, graph_.Describe(member), " is a member twice");
      } else if (owner >= 0) {
        BadBucket(k, graph_.Describe(member), " is already in bucket ", owner);
      }
      owner = id;
      placement_.bucket_of[Index(CollectiveAt(member).wait)] = id;
    }
  }

  void KindCanBeBucketed(size_t k, const Bucket& bucket) {
    const Collective& first = CollectiveAt(bucket.members.front());
    if (!Bucketable(first.kind)) {
      BadBucket(k, graph_.Describe(first.start), " is of kind ", Name(first.kind),
                ", which cannot be bucketed");
    }
  }

  void MembersAgree(size_t k, const Bucket& bucket) {
    const Collective& first = CollectiveAt(bucket.members.front());
    for (const NodeId member : bucket.members) {
      const absl::string_view what =
          Difference(BucketKey::Of(CollectiveAt(member)), BucketKey::Of(first));
      if (what.empty()) continue;
      BadBucket(k, graph_.Describe(first.start), " and ", graph_.Describe(member), " differ in ",
                what);
      return;
    }
  }

  void LayoutIsBackToBack(size_t k, const Bucket& bucket) {
    const bool has_offsets = !bucket.offsets.empty();
    if (!has_offsets && bucket.slice_bytes == 0 && bucket.bytes == 0) return;
    Bucket expected;
    expected.members = bucket.members;
    LayOut(graph_, expected);
    if ((has_offsets && bucket.offsets != expected.offsets) ||
        bucket.slice_bytes != expected.slice_bytes || bucket.bytes != expected.bytes) {
      BadBucket(k, "offsets are not those of its members back to back (a slice of ",
                expected.slice_bytes, " bytes, ", expected.bytes, " in all)");
    }
  }

  // Finds out on the way where each one stands.
  void StepsAreKnownAndOnce() {
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
          BadOrder("step ", i, " is of no known kind");
          break;
      }
    }
  }

  void PlaceNode(NodeId n, int64_t place) {
    if (n < 0 || n >= graph_.size()) {
      BadOrder("there is no node ", n);
    } else if (placement_.bucket(n) >= 0) {
      BadOrder(graph_.Describe(n), " is inside bucket ", placement_.bucket(n));
    } else if (placement_.place(n) != kNowhere) {
      BadOrder(graph_.Describe(n), " stands twice");
    } else {
      placement_.of_node[Index(n)] = place;
    }
  }

  void PlaceToken(absl::string_view token, BucketId k, int64_t place,
                  std::vector<int64_t>& places) {
    if (k < 0 || Index(k) >= plan_.buckets.size()) {
      BadOrder(token, ":", k, " names no bucket; there are ", plan_.buckets.size());
    } else if (places[Index(k)] != kNowhere) {
      BadOrder(token, ":", k, " stands twice");
    } else {
      places[Index(k)] = place;
    }
  }

  void NodesStand() {
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (placement_.bucket(n) < 0 && placement_.place(n) == kNowhere) {
        BadOrder(graph_.Describe(n), " is missing");
      }
    }
  }

  void TokensStand(size_t k, const Bucket&) {
    if (start_place_[k] == kNowhere) BadOrder("start:", k, " is missing");
    if (wait_place_[k] == kNowhere) BadOrder("wait:", k, " is missing");
  }

  void PlaceMembers() {
    for (size_t k = 0; k < plan_.buckets.size(); ++k) {
      int64_t position = 0;
      for (const NodeId member : plan_.buckets[k].members) {
        placement_.of_node[Index(member)] = start_place_[k];
        placement_.of_node[Index(CollectiveAt(member).wait)] = wait_place_[k] + position++;
      }
    }
  }

  bool IsMember(NodeId n) const {
    return placement_.bucket(n) >= 0 && graph_.kind(n) == NodeKind::kCollective;
  }
  bool IsWaitOfMember(NodeId n) const {
    return placement_.bucket(n) >= 0 && graph_.kind(n) == NodeKind::kWait;
  }

  void WaitFollowsItsStart(size_t k, const Bucket&) {
    if (wait_place_[k] < start_place_[k]) BadOrder("wait:", k, " stands before start:", k);
  }

  void ReadersOfMembersWait(size_t k, const Bucket& bucket) {
    for (const NodeId member : bucket.members) {
      for (const NodeId n : graph_.users(member)) {
        if (IsWaitOfMember(n)) continue;
        BadOrder(graph_.Describe(n), " reads ", graph_.Describe(member),
                 ", which is inside bucket ", k, ", without waiting for it");
      }
    }
  }

  void NodesFollowTheirInputs() {
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (IsWaitOfMember(n)) continue;
      for (const NodeId x : graph_.inputs(n)) {
        if (IsMember(x) || placement_.place(x) < placement_.place(n)) continue;
        if (IsMember(n)) {
          BadOrder("start:", placement_.bucket(n), " stands before ", graph_.Describe(x),
                   InBucket(x), ", which its member ", graph_.Describe(n), " reads");
        } else if (IsWaitOfMember(x)) {
          BadOrder(graph_.Describe(n), " runs before wait:", placement_.bucket(x),
                   ", which makes its input ", graph_.Describe(x));
        } else {
          BadOrder(graph_.Describe(n), " runs before its input ", graph_.Describe(x));
        }
      }
    }
  }

  std::string InBucket(NodeId n) const {
    const BucketId k = placement_.bucket(n);
    return k < 0 ? std::string() : absl::StrCat(" in bucket ", k);
  }

  void OrderedOpsKeepTheirOrder() {
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
