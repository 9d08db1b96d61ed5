#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "passes/auto/problem.h"
#include "passes/base/collectives.h"
#include "passes/ir/bucket_key.h"

namespace bucketd::search {
namespace {

// What hangs on each leader.
struct Below {
  std::vector<int32_t> leaders, collectives;  // at least so many; on the longest path
  std::vector<int64_t> compute_ps;            // paths that join again count twice
  std::vector<bool> only_sinks;               // of collectives
};

class UseFinder {
 public:
  explicit UseFinder(Problem& problem) : p_(problem) {}

  void Run() {
    FindSinks();
    FindRoots();
    FindLeavesAndPosts();
    NumberKeys();
  }

 private:
  bool IsSink(LeaderId l, const Transfer& t) const {
    const size_t i = Index(l);
    return !t.pinned && t.wait >= 0 && below_.only_sinks[i] && below_.leaders[i] <= kMaxBelow &&
           Reduces(t.kind) && below_.compute_ps[i] <= t.alpha_ps + t.wire_ps;
  }

  void FindSinks() {
    const size_t size = Index(p_.size());
    below_.leaders.assign(size, 0);
    below_.collectives.assign(size, 0);
    below_.compute_ps.assign(size, 0);
    below_.only_sinks.assign(size, true);
    for (LeaderId l = p_.size(); l-- > 0;) {
      const size_t i = Index(l);
      for (const LeaderId y : p_.after.of(l)) {
        const size_t j = Index(y);
        below_.leaders[i] = std::min(kMaxBelow + 1, below_.leaders[i] + 1 + below_.leaders[j]);
        below_.collectives[i] =
            std::max(below_.collectives[i], below_.collectives[j] + (p_.start_of[j] >= 0 ? 1 : 0));
        // A count of paths grows fast; what matters is whether it is small.
        below_.compute_ps[i] =
            std::min(int64_t{1} << 60, below_.compute_ps[i] + p_.cost[j] + below_.compute_ps[j]);
        if (!below_.only_sinks[j]) below_.only_sinks[i] = false;
      }
      if (p_.start_of[i] < 0) continue;
      Transfer& t = p_.transfers[Index(p_.start_of[i])];
      if (IsSink(l, t)) {
        t.use = Use::kSink;
        if (Scatters(t.kind)) t.launch_bytes = t.out_bytes;
        t.level = below_.collectives[i];
      } else {
        below_.only_sinks[i] = false;
      }
    }
  }

  // Fills `above` with all that a leader is computed from, ascending; false if that is a lot.
  bool FindAbove(LeaderId leader, std::vector<LeaderId>& above) {
    above.clear();
    std::vector<LeaderId> open(p_.before.of(leader).begin(), p_.before.of(leader).end());
    while (!open.empty()) {
      const LeaderId x = open.back();
      open.pop_back();
      if (std::find(above.begin(), above.end(), x) != above.end()) continue;
      above.push_back(x);
      if (above.size() + p_.before.of(x).size() > kMaxAbove) return false;
      open.insert(open.end(), p_.before.of(x).begin(), p_.before.of(x).end());
    }
    std::sort(above.begin(), above.end());
    return true;
  }

  void FindRoots() {
    std::vector<bool> below_transfer(Index(p_.size()), false);
    for (LeaderId l = 0; l < p_.size(); ++l) {
      for (const LeaderId x : p_.before.of(l)) {
        if (below_transfer[Index(x)] || p_.start_of[Index(x)] >= 0) below_transfer[Index(l)] = true;
      }
    }
    p_.root_of.assign(Index(p_.size()), -1);
    std::vector<LeaderId> above;
    for (Transfer& t : p_.transfers) {
      t.need = p_.size();
      const bool root = t.use == Use::kInline && !t.pinned && t.wait >= 0 && Gathers(t.kind) &&
                        !below_transfer[Index(t.start)] && FindAbove(t.start, above);
      if (root) {
        t.use = Use::kRoot;
        for (const LeaderId y : p_.after.of(t.wait)) t.need = std::min(t.need, y);
        t.launch_bytes = t.out_bytes;
        for (const LeaderId x : above) {
          if (p_.root_of[Index(x)] < 0) p_.root_of[Index(x)] = p_.start_of[Index(t.start)];
          t.launch_bytes += p_.own_bytes[Index(x)];
        }
        p_.root_work.Append(above);
      }
      p_.root_work.Close();
    }
  }

  void FindLeavesAndPosts() {
    const size_t size = Index(p_.size());
    p_.is_leaf.assign(size, false);
    p_.is_post.assign(size, false);
    const auto sink = [&](CollectiveId c) { return c >= 0 && p_.transfer(c).use == Use::kSink; };
    for (LeaderId l = 0; l < p_.size(); ++l) {
      for (const LeaderId x : p_.before.of(l)) {
        if (p_.is_post[Index(x)] || sink(p_.start_of[Index(x)])) p_.is_post[Index(l)] = true;
      }
    }
    for (size_t i = 0; i < size; ++i) {
      p_.is_leaf[i] = p_.cost[i] > 0 && below_.leaders[i] <= kMaxBelow && below_.only_sinks[i] &&
                      !p_.is_post[i] && below_.collectives[i] > 0;
    }
  }

  void NumberKeys() {
    absl::flat_hash_map<std::tuple<BucketKey, Use, int32_t, bool>, int32_t> numbers;
    const size_t groups = p_.graph->groups().size();
    p_.root_keys.resize(groups);
    p_.sink_keys.resize(groups);
    for (size_t i = 0; i < p_.transfers.size(); ++i) {
      Transfer& t = p_.transfers[i];
      if (t.use == Use::kInline) continue;
      const Collective& c = p_.graph->collective(static_cast<CollectiveId>(i));
      const auto [it, added] =
          numbers.emplace(std::make_tuple(BucketKey::Of(c), t.use, t.level, t.mergeable), p_.keys);
      t.key = it->second;
      if (added) {
        ++p_.keys;
        p_.roots.emplace_back();
        (t.use == Use::kRoot ? p_.root_keys : p_.sink_keys)[Index(t.group)].push_back(t.key);
      }
      if (t.use == Use::kRoot) p_.roots[Index(t.key)].push_back(static_cast<CollectiveId>(i));
    }
    for (std::vector<CollectiveId>& roots : p_.roots) {
      std::stable_sort(roots.begin(), roots.end(), [&](CollectiveId a, CollectiveId b) {
        return p_.transfer(a).need < p_.transfer(b).need;
      });
    }
  }

  Problem& p_;
  Below below_;
};

}  // namespace

void FindUses(Problem& problem) { UseFinder(problem).Run(); }

}  // namespace bucketd::search
