// Memory of the simulated GPUs and its shadow: who touched which bytes, ordered by what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace bucketd::agent::sim {

// A vector clock: how far each stream is known to have come.
class Clock {
 public:
  uint32_t at(size_t stream) const { return stream < ticks_.size() ? ticks_[stream] : 0; }
  void Join(const Clock& other);
  uint32_t Tick(size_t stream);

 private:
  std::vector<uint32_t> ticks_;
};

// Who touches memory, when.
struct Toucher {
  std::string what;  // "collective 3 of lane 0"
  size_t stream = 0;
  int device = 0;
  const Clock* clock = nullptr;  // the stream's own tick included
};

// What was found wrong, each once, in the order of its finding.
class Findings {
 public:
  void Add(const std::string& finding);
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> all_;
};

// Addresses of device memory are never mapped for the host (it faults there) and never used twice.
class Memory {
 public:
  explicit Memory(Findings& findings);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // `device` -1: pinned memory of the host, which the host may use.
  std::byte* Allocate(int device, size_t bytes, size_t alignment);
  // `host`: what the host has seen done. A touch that is not among it is a finding.
  void Free(void* base, const Clock& host, const std::string& how);
  // Device memory, pinned, or neither.
  bool IsDevice(const void* address) const;
  bool IsPinned(const void* address) const;
  // Frees that do not wait leave addresses behind that nothing may touch.
  size_t live() const { return regions_.size(); }
  size_t bytes_on(int device) const;

  // Where the bytes are, or null with a finding: freed, of another GPU, of the host. A race with
  // an earlier touch is a finding too.
  std::byte* Touch(const void* address, size_t bytes, bool write, const Toucher& by);

 private:
  struct Access {
    size_t begin = 0, end = 0, stream = 0;
    uint32_t at = 0;
    bool write = false;
    std::string what;
  };
  struct Region {
    size_t bytes = 0;
    int device = 0;
    std::vector<std::byte> backing;  // of device memory
    std::vector<Access> accesses;    // those that a later one may race with
  };
  using Regions = std::map<uintptr_t, Region>;

  Regions::iterator Find(const void* address);
  void Note(Region& region, const Access& now, const Clock& clock);

  Findings& findings_;
  std::byte* reserved_ = nullptr;  // for all device memory there will be
  size_t used_ = 0;
  Regions regions_;
};

}  // namespace bucketd::agent::sim
