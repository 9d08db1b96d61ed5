// Pins and jobs as they stand in the store (proto/pins.proto; pin_index.h has their keys), and what
// may be written over them: of one generation the first word holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "server/jobs/machine/pin.h"
#include "server/store/audit.h"
#include "server/store/store.h"

namespace bucketd {

struct Kept {
  WallTime expires;
  uint32_t ranks = 0;
};
// nullopt, of these three: there is none, or it is of a format that we do not know. What has
// expired and is still there stands: who takes that for nothing because its own clock is ahead
// would write another plan into a generation that has one.
std::optional<Kept> KeptBy(const Record& record);
std::optional<Pin> PinIn(const std::string& key, const std::optional<std::string>& value);
std::optional<JobMemory> MemoryIn(const std::string& key, const std::optional<std::string>& value);
std::string PlanKeyIn(const Record& pin);  // "": none

std::string Serialize(const Pin& pin, WallTime expires);
std::string Serialize(const JobMemory& memory, WallTime expires);
std::string WithExpiry(const Record& record, WallTime expires);

// What stands once it is written over `before`: of a generation that is there already, what that
// says, and of `memory` what it leaves open. ABORTED: there is a later generation. Sets what the
// line says where a generation or a pin begins with it.
absl::StatusOr<JobMemory> NextMemory(const std::string& key,
                                     const std::optional<std::string>& before,
                                     const JobMemory& memory, AuditLine& line);
absl::StatusOr<Pin> NextPin(const std::string& key, const std::optional<std::string>& before,
                            const Pin& pin, AuditLine& line);
// Whether what is said here of a generation is so, though more may have been said.
bool Holds(const JobMemory& here, const JobMemory& stands);

// Without what it says. A release by whoever runs the job is no operator's, and has another word.
AuditLine LineAbout(absl::string_view key, absl::string_view what, const Actor& by);
std::string InWords(WallTime time);
std::string WhatStands(const Record& record);  // for people, of a record that goes

}  // namespace bucketd
