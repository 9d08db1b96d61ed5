#include "server/base/shares.h"

namespace bucketd {

void Shares::Count(Group& group, const Path& path, size_t level, Id id, bool more) {
  group.count += more ? 1 : -1;
  if (level == path.size()) {
    if (more) {
      group.items.insert(id);
    } else {
      group.items.erase(id);
    }
    return;
  }
  const std::string& name = path[level];
  std::unique_ptr<Group>& part = group.parts[name];
  if (part == nullptr) part = std::make_unique<Group>();
  group.by_count.erase({part->count, name});
  Count(*part, path, level + 1, id, more);
  if (part->count == 0) {
    group.parts.erase(name);
  } else {
    group.by_count.emplace(part->count, name);
  }
}

Shares::Id Shares::Newest(const Group& group) {
  const Group* at = &group;
  while (!at->by_count.empty()) at = at->parts.at(at->by_count.rbegin()->second).get();
  return at->items.empty() ? 0 : *at->items.rbegin();
}

Shares::Id Shares::GivesWayTo(const Path& newcomer) const {
  const Group* at = &root_;
  for (const std::string& name : newcomer) {
    if (at->by_count.empty()) return 0;
    const auto& [most, largest] = *at->by_count.rbegin();
    const auto own = at->parts.find(name);
    const int64_t mine = own == at->parts.end() ? 0 : own->second->count;
    if (most > mine + 1) return Newest(*at->parts.at(largest));
    if (own == at->parts.end()) return 0;
    at = own->second.get();
  }
  return 0;
}

}  // namespace bucketd
