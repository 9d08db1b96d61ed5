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
  if (part == nullptr) {
    part = std::make_unique<Group>();
    part->number = ++last_number_;
  }
  const Part before{part->count, part->number, part.get()};
  const bool had_spare = part->has_spare();
  ChangeAt(*part, path, level + 1, change);
  const Part after{part->count, part->number, part.get()};
  const bool has_spare = part->has_spare(), is_empty = part->is_empty();
  group.count += after.count - before.count;
  const bool has_moved = before.count != after.count;
  if (had_spare && (has_moved || !has_spare)) group.with_spare.erase(before);
  if (has_spare && (has_moved || !had_spare)) group.with_spare.insert(after);
  if (has_moved) group.by_count.erase(before);
  if (is_empty) {
    group.by_count.erase(after);
    group.parts.erase(name);
  } else {
    group.by_count.insert(after);  // it may be there
  }
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
    at = (at->with_spare.empty() ? at->by_count : at->with_spare).rbegin()->group;
  }
  if (!at->spare.empty()) return at->spare.begin()->second;
  return at->items.empty() ? 0 : at->items.rbegin()->second;
}

Shares::Id Shares::GivesWayTo(const Path& newcomer) const {
  const Group* at = &root_;
  Id spare = 0;  // of who holds more, though not by two; the finest group's counts
  for (const std::string& name : newcomer) {
    if (at->by_count.empty()) return spare;
    const Part& largest = *at->by_count.rbegin();
    const auto own = at->parts.find(name);
    const int64_t mine = own == at->parts.end() ? 0 : own->second->count;
    if (largest.count > mine + 1) return FirstOf(*largest.group);
    if (!at->with_spare.empty() && at->with_spare.rbegin()->count > mine) {
      spare = FirstOf(*at->with_spare.rbegin()->group);
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

Shares::Path ShareOf(absl::string_view tenant, absl::string_view host, bool tenant_is_known) {
  Shares::Path share = {absl::StrCat("peer ", host), absl::StrCat("tenant ", tenant)};
  if (tenant_is_known) share[0].swap(share[1]);
  return share;
}

}  // namespace bucketd
