// The events of each process group in the order of a schedule, as linked lists from which merged
// launches are taken. Internal to the bucketer.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/pass/overlap_bucket/overlap_bucket_model.h"

namespace bucketd::overlap_bucket {

// Collectives of one group run one after the other, so each event of a list happens after the one
// before it. Compute nodes are events of every group; as they are the same chain for all of them,
// they stand in no list: an event knows its slot, the number of compute nodes before it, and
// happens after compute node slot - 1 and before compute node slot. Other nodes that hide a launch
// are events of that launch's group.
class GroupTimelines {
 public:
  struct Event {
    int32_t item = -1;
    int32_t launch = -1;  // -1: a node that hides
    bool linked = true;
    GroupId group = -1;
    int32_t position = 0, slot = 0;
    int32_t prev = -1, next = -1;  // of the group
    int32_t next_of_item = -1;
  };

  explicit GroupTimelines(const Model& model);

  const Event& event(int32_t e) const { return events_[static_cast<size_t>(e)]; }
  int32_t size() const { return static_cast<int32_t>(events_.size()); }
  int32_t first_of_item(int32_t item) const { return first_of_item_[static_cast<size_t>(item)]; }
  // Where a launch's start and wait happen now.
  int32_t start(int32_t launch) const { return start_[static_cast<size_t>(launch)]; }
  int32_t wait(int32_t launch) const { return wait_[static_cast<size_t>(launch)]; }

  // Takes an event out of its list, and back in; the last one taken out comes back first.
  void Unlink(int32_t e);
  void Relink(int32_t e);

  // `candidate` joins the bucket whose first launch is `first`; both now start and are waited for
  // where the flags say.
  void Join(int32_t first, int32_t candidate, bool start_at_first, bool wait_at_first);

 private:
  void Add(const Event& event);

  std::vector<Event> events_;
  std::vector<int32_t> first_of_item_;
  std::vector<int32_t> last_;  // of a group, while lists are built
  std::vector<int32_t> start_, wait_;
};

}  // namespace bucketd::overlap_bucket
