// Who gives way where something that is bounded is full: whoever holds most of it. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace bucketd {

class Shares {
 public:
  using Id = uint64_t;                    // never 0
  using Path = std::vector<std::string>;  // whose it is, coarse to fine; all have the same length

  void Add(const Path& path, Id id) { Count(root_, path, 0, id, true); }
  // REQUIRES: it was added.
  void Remove(const Path& path, Id id) { Count(root_, path, 0, id, false); }

  // The newest item of whoever holds most, if that is more than the newcomer would then hold: first
  // among the coarsest groups, then, where those are even, within the newcomer's own. 0: nobody
  // has to give way, and the newcomer should be refused.
  Id GivesWayTo(const Path& newcomer) const;

 private:
  struct Group {
    int64_t count = 0;
    std::map<std::string, std::unique_ptr<Group>> parts;
    std::set<std::pair<int64_t, std::string>> by_count;  // of parts
    std::set<Id> items;                                  // of the finest groups
  };
  static void Count(Group& group, const Path& path, size_t level, Id id, bool more);
  static Id Newest(const Group& group);

  Group root_;
};

}  // namespace bucketd
