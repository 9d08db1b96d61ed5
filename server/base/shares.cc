#include "server/base/shares.h"

#include "absl/strings/str_cat.h"

namespace bucketd {

template <typename Change>
void Shares::ChangeAt(Group& group, const Path& path, size_t level, const Change& change) {
  if (level == path.size()) {
    change(group);
    return;
  }
  const std::string& name = path[level];
  std::unique_ptr<Group>& part = group.parts[name];
  if (part == nullptr) part = std::make_unique<Group>();
  const int64_t before = part->count;
  group.by_count.erase({before, name});
  group.with_spare.erase({before, name});
  ChangeAt(*part, path, level + 1, change);
  group.count += part->count - before;
  if (part->is_empty()) {
    group.parts.erase(name);
    return;
  }
  group.by_count.emplace(part->count, name);
  if (part->has_spare()) group.with_spare.emplace(part->count, name);
}

void Shares::Add(const Path& path, Id id, int64_t weight) {
  ChangeAt(root_, path, 0, [&](Group& finest) {
    finest.items.emplace(weight, id);
    finest.count += weight;
  });
}

void Shares::Remove(const Path& path, Id id, int64_t weight) {
  ChangeAt(root_, path, 0, [&](Group& finest) {
    finest.items.erase({weight, id});
    finest.count -= weight;
  });
}

void Shares::SetSpare(const Path& path, Id id, uint64_t since) {
  ChangeAt(root_, path, 0, [&](Group& finest) { finest.spare.emplace(since, id); });
}

void Shares::SetNeeded(const Path& path, Id id, uint64_t since) {
  ChangeAt(root_, path, 0, [&](Group& finest) { finest.spare.erase({since, id}); });
}

Shares::Id Shares::FirstOf(const Group& group) {
  const Group* at = &group;
  while (!at->parts.empty()) {
    const BySize& parts = at->with_spare.empty() ? at->by_count : at->with_spare;
    at = at->parts.at(parts.rbegin()->second).get();
  }
  if (!at->spare.empty()) return at->spare.begin()->second;
  return at->items.empty() ? 0 : at->items.rbegin()->second;
}

Shares::Id Shares::GivesWayTo(const Path& newcomer) const {
  const Group* at = &root_;
  Id spare = 0;  // of who holds more, though not by two; the finest group's counts
  for (const std::string& name : newcomer) {
    if (at->by_count.empty()) return spare;
    const auto& [most, largest] = *at->by_count.rbegin();
    const auto own = at->parts.find(name);
    const int64_t mine = own == at->parts.end() ? 0 : own->second->count;
    if (most > mine + 1) return FirstOf(*at->parts.at(largest));
    if (!at->with_spare.empty() && at->with_spare.rbegin()->first > mine) {
      spare = FirstOf(*at->parts.at(at->with_spare.rbegin()->second));
    }
    if (own == at->parts.end()) return spare;
    at = own->second.get();
  }
  return at->spare.empty() ? spare : at->spare.begin()->second;
}

Shares::Id Shares::SpareOf(const Path& owner) const {
  const Group* at = &root_;
  for (const std::string& name : owner) {
    const auto own = at->parts.find(name);
    if (own == at->parts.end()) return 0;
    at = own->second.get();
  }
  return at->spare.empty() ? 0 : at->spare.begin()->second;
}

std::pair<std::string, std::string> ShareOf(absl::string_view tenant, absl::string_view host,
                                            bool tenant_is_known) {
  std::pair<std::string, std::string> share(absl::StrCat("peer ", host),
                                            absl::StrCat("tenant ", tenant));
  if (tenant_is_known) share.first.swap(share.second);
  return share;
}

}  // namespace bucketd
