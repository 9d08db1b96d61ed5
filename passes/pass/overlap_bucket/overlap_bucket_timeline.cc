#include "passes/pass/overlap_bucket/overlap_bucket_timeline.h"

#include <algorithm>
#include <utility>

#include "passes/base/index.h"

namespace bucketd::overlap_bucket {
GroupTimelines::GroupTimelines(const Model& model)
    : first_of_item_(Index(model.items()), -1),
      last_(model.context.graph.groups().size(), -1),
      start_(model.launches.size(), -1),
      wait_(model.launches.size(), -1) {
  std::vector<std::pair<int32_t, GroupId>> hiding;  // (position, group)
  for (const LaunchInfo& launch : model.launches) {
    for (const int32_t item : launch.hidden_by) {
      if (model.compute_index[Index(item)] >= 0) continue;
      hiding.emplace_back(model.position[Index(item)], launch.group);
    }
  }
  std::sort(hiding.begin(), hiding.end());
  hiding.erase(std::unique(hiding.begin(), hiding.end()), hiding.end());
  auto next_hiding = hiding.begin();
  int32_t slot = 0;
  for (int32_t at = 0; at < static_cast<int32_t>(model.order.size()); ++at) {
    const int32_t item = model.order[Index(at)];
    const int32_t l = model.launch_of[Index(item)];
    Event event;
    event.item = item;
    event.position = at;
    event.slot = slot;
    if (l >= 0) {
      const LaunchInfo& launch = model.launches[Index(l)];
      event.launch = l;
      event.group = launch.group;
      (item == launch.wait_item ? wait_ : start_)[Index(l)] = size();
      Add(event);
    }
    for (; next_hiding != hiding.end() && next_hiding->first == at; ++next_hiding) {
      if (l >= 0 && model.launches[Index(l)].group == next_hiding->second) continue;
      event.launch = -1;
      event.group = next_hiding->second;
      Add(event);
    }
    if (model.compute_index[Index(item)] >= 0) ++slot;
  }
}

void GroupTimelines::Add(const Event& event) {
  const int32_t e = size();
  events_.push_back(event);
  Event& added = events_.back();
  int32_t& last = last_[Index(event.group)];
  added.prev = last;
  if (last >= 0) events_[Index(last)].next = e;
  last = e;
  added.next_of_item = first_of_item_[Index(event.item)];
  first_of_item_[Index(event.item)] = e;
}

void GroupTimelines::Unlink(int32_t e) {
  Event& event = events_[Index(e)];
  event.linked = false;
  if (event.prev >= 0) events_[Index(event.prev)].next = event.next;
  if (event.next >= 0) events_[Index(event.next)].prev = event.prev;
}

void GroupTimelines::Relink(int32_t e) {
  Event& event = events_[Index(e)];
  event.linked = true;
  if (event.prev >= 0) events_[Index(event.prev)].next = e;
  if (event.next >= 0) events_[Index(event.next)].prev = e;
}

void GroupTimelines::Join(int32_t first, int32_t candidate, bool start_at_first,
                          bool wait_at_first) {
  Unlink(start(start_at_first ? candidate : first));
  Unlink(wait(wait_at_first ? candidate : first));
  start_[Index(first)] = start_[Index(candidate)] = start(start_at_first ? first : candidate);
  wait_[Index(first)] = wait_[Index(candidate)] = wait(wait_at_first ? first : candidate);
}

}  // namespace bucketd::overlap_bucket
