#include "tests/gpu_agent/cudasim/memory.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

namespace bucketd::agent::sim {
namespace {

constexpr size_t kReserved = size_t{1} << 36;
constexpr int kPinned = -1;

}  // namespace

void Clock::Join(const Clock& other) {
  if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
  for (size_t s = 0; s < other.ticks_.size(); ++s) {
    ticks_[s] = std::max(ticks_[s], other.ticks_[s]);
  }
}

uint32_t Clock::Tick(size_t stream) {
  if (ticks_.size() <= stream) ticks_.resize(stream + 1);
  return ++ticks_[stream];
}

void Findings::Add(const std::string& finding) {
  if (seen_.insert(finding).second) all_.push_back(finding);
}

Memory::Memory(Findings& findings) : findings_(findings) {
  void* reserved =
      mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) std::abort();
  reserved_ = static_cast<std::byte*>(reserved);
}

Memory::~Memory() {
  for (const auto& [base, region] : regions_) {
    if (region.device == kPinned) std::free(reinterpret_cast<void*>(base));
  }
  munmap(reserved_, kReserved);
}

size_t Memory::bytes_on(int device) const {
  size_t bytes = 0;
  for (const auto& [base, region] : regions_) bytes += region.device == device ? region.bytes : 0;
  return bytes;
}

std::byte* Memory::Allocate(int device, size_t bytes, size_t alignment) {
  Region region;
  region.bytes = bytes;
  region.device = device;
  std::byte* base = nullptr;
  if (device == kPinned) {
    void* pinned = nullptr;
    if (posix_memalign(&pinned, 4096, bytes) != 0) return nullptr;
    base = static_cast<std::byte*>(pinned);
  } else {
    used_ = (used_ + alignment - 1) / alignment * alignment;
    if (bytes > kReserved - used_) return nullptr;
    base = reserved_ + used_;
    used_ += bytes + 1;  // what ends here does not touch what begins next
    region.backing.assign(bytes, std::byte{0xcd});
  }
  regions_[reinterpret_cast<uintptr_t>(base)] = std::move(region);
  return base;
}

Memory::Regions::iterator Memory::Find(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto it = regions_.upper_bound(at);
  if (it == regions_.begin()) return regions_.end();
  --it;
  return at < it->first + it->second.bytes ? it : regions_.end();
}

void Memory::Free(void* base, const Clock& host, const std::string& how) {
  const auto found = regions_.find(reinterpret_cast<uintptr_t>(base));
  if (found == regions_.end()) return findings_.Add(absl::StrCat(how, " of what is no allocation"));
  for (const Access& access : found->second.accesses) {
    if (host.at(access.stream) >= access.at) continue;
    findings_.Add(
        absl::StrCat(how, " of memory that ", access.what, " used: nobody has waited for it"));
  }
  if (found->second.device == kPinned) std::free(base);
  regions_.erase(found);
}

bool Memory::IsDevice(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return at >= reserved_ && at < reserved_ + kReserved;
}

bool Memory::IsPinned(const void* address) const {
  const auto found = const_cast<Memory*>(this)->Find(address);
  return found != regions_.end() && found->second.device == kPinned;
}

std::byte* Memory::Touch(const void* address, size_t bytes, bool write, const Toucher& by) {
  const auto found = Find(address);
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (found == regions_.end()) {
    findings_.Add(absl::StrCat(by.what, IsDevice(address) ? " uses memory after its free"
                                                          : " uses plain memory of the host"));
    return nullptr;
  }
  Region& region = found->second;
  const size_t begin = at - found->first;
  if (begin + bytes > region.bytes) {
    findings_.Add(absl::StrCat(by.what, " goes past the end of its memory"));
    return nullptr;
  }
  if (region.device != kPinned && region.device != by.device) {
    findings_.Add(
        absl::StrCat(by.what, " on GPU ", by.device, " uses memory of GPU ", region.device));
    return nullptr;
  }
  Note(region, {begin, begin + bytes, by.stream, by.clock->at(by.stream), write, by.what},
       *by.clock);
  if (region.device == kPinned) return reinterpret_cast<std::byte*>(at);
  return region.backing.data() + begin;
}

void Memory::Note(Region& region, const Access& now, const Clock& clock) {
  std::erase_if(region.accesses, [&](const Access& before) {
    if (before.end <= now.begin || now.end <= before.begin) return false;
    const bool ordered = clock.at(before.stream) >= before.at;
    if (!ordered && (before.write || now.write)) {
      findings_.Add(absl::StrCat("a race: nothing orders ", before.what, " before ", now.what));
    }
    const bool covered = now.begin <= before.begin && before.end <= now.end;
    // Whoever is ordered behind a write is ordered behind all that was before it.
    return ordered && covered && (now.write || (!before.write && before.stream == now.stream));
  });
  region.accesses.push_back(now);
}

}  // namespace bucketd::agent::sim
