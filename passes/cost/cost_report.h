// What somebody measured, and who: the content of a ReportCosts stream and of `bucketctl costs
// report` files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "passes/base/types.h"
#include "passes/cost/measured_link.h"

namespace bucketd {

// One collective, without the copies around it; of a grouped launch, all of it.
struct CollectiveSample {
  LinkClass of;
  std::string mesh_dim;  // for people
  int32_t launches = 1;  // members of a grouped launch
  bool packed = false;   // the message was a packed bucket
  int64_t bytes = 0;     // full message, as Collective::bytes; of all members
  int64_t picoseconds = 0;
};

// For people, but for `reporter`: one reporter has one vote.
struct CostProvenance {
  std::string reporter;  // a host
  std::string job;
  std::string tool;
  std::string device;
};

struct CostReport {
  std::string profile;  // whose class rows it is about
  CostProvenance by;
  std::vector<CollectiveSample> samples;
};

// Class valid, 1 byte to 1 TiB, 1 ns to 1000 s, up to 2^20 launches. Names the field.
absl::Status Validate(const CollectiveSample& sample);
// Each text up to 128 printable ASCII characters; a reporter. Names the field.
absl::Status Validate(const CostProvenance& by);

}  // namespace bucketd
