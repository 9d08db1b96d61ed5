// How one replica sees all of them: for operators.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/cluster/membership.h"

namespace bucketd {

struct ClusterView {
  std::vector<ReplicaView> replicas;  // it too, in the order of their addresses
  int64_t job_leases = 0;             // that it holds
  int64_t plan_leases = 0;
  std::string trouble;  // why it takes nothing on; "": it does
};

}  // namespace bucketd
