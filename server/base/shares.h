// Who gives way where something that is bounded is full: whoever holds most of it. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace bucketd {

class Shares {
 public:
  using Id = uint64_t;                    // never 0
  using Path = std::vector<std::string>;  // whose it is, coarse to fine; all have the same length

  // `weight`: how much of it that is.
  void Add(const Path& path, Id id, int64_t weight = 1);
  // REQUIRES: it was added with this weight, and is not spare.
  void Remove(const Path& path, Id id, int64_t weight = 1);

  // Nobody needs it now: of what its owner holds it goes first, the one of the least `since` before
  // others. REQUIRES: it was added.
  void SetSpare(const Path& path, Id id, uint64_t since);
  // REQUIRES: it is spare since then.
  void SetNeeded(const Path& path, Id id, uint64_t since);

  // Of whoever holds most, if that is more than the newcomer would then hold, what is spare, or
  // else the heaviest, and of equal ones the newest: first among the coarsest groups, then, where
  // those are even, within the newcomer's own. Where all are even, what is spare of the newcomer's,
  // or of who holds more than it does now. 0: nobody has to give way, and the newcomer should be
  // refused. O(log of what is held).
  Id GivesWayTo(const Path& newcomer) const;
  // Of the owner's own what is spare, the least `since` first; 0: nothing.
  Id SpareOf(const Path& owner) const;

 private:
  struct Group;
  struct Part {
    int64_t count = 0;
    uint64_t number = 0;
    Group* group = nullptr;
    friend bool operator<(const Part& a, const Part& b) {
      return std::pair(a.count, a.number) < std::pair(b.count, b.number);
    }
  };
  struct Group {
    uint64_t number = 0;  // in the order in which they came
    int64_t count = 0;    // by weight
    absl::flat_hash_map<std::string, std::unique_ptr<Group>> parts;
    std::set<Part> by_count, with_spare;      // of parts
    std::set<std::pair<int64_t, Id>> items;   // of the finest groups, by weight
    std::set<std::pair<uint64_t, Id>> spare;  // of those, by `since`

    bool has_spare() const { return !spare.empty() || !with_spare.empty(); }
    bool is_empty() const { return items.empty() && parts.empty(); }
  };
  template <typename Change>
  void ChangeAt(Group& group, const Path& path, size_t level, const Change& change);
  static Id FirstOf(const Group& group);

  uint64_t last_number_ = 0;
  Group root_;
};

// By whom places are shared: a peer is a host. Where callers are known the tenant comes before the
// host, so that a tenant with many hosts has one share; where they are not, anybody may name any
// tenant, and the host comes first.
Shares::Path ShareOf(absl::string_view tenant, absl::string_view host, bool tenant_is_known);

}  // namespace bucketd
