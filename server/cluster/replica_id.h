// Which process of which replica: a restart makes another one of it.
#pragma once

#include <cstdint>
#include <string>

namespace bucketd {

struct ReplicaId {
  std::string address;  // --cluster-address: where the others call it
  uint64_t incarnation = 0;

  friend bool operator==(const ReplicaId&, const ReplicaId&) = default;
};

}  // namespace bucketd
