// What a call to bucketd can end with. A status carries google.rpc.ErrorInfo and RetryInfo as
// payloads, as they came: ReasonOf and RetryAfter read them.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bucketd::client {

// Reasons of the client's own, beside those of the service (proto/REASONS.md).
inline constexpr char kUnreachable[] = "UNREACHABLE";  // UNAVAILABLE: nobody answers at the address
inline constexpr char kDeadline[] = "DEADLINE";        // DEADLINE_EXCEEDED: no answer in time
inline constexpr char kProtocol[] = "PROTOCOL";        // INTERNAL: an answer that makes no sense
inline constexpr char kUnplanned[] = "UNPLANNED";      // FAILED_PRECONDITION: planning is switched
                                                       // off; all ranks run their graph as it is

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message);

// "" if `status` carries none.
std::string ReasonOf(const absl::Status& status);
// When the service says to come back, from 50 ms to a day; nothing if it does not.
std::optional<std::chrono::milliseconds> RetryAfter(const absl::Status& status);

// `serialized` is a google.rpc.Status, as it travels in grpc-status-details-bin: its details become
// payloads of `status`. What cannot be read is left out.
void AddDetails(absl::string_view serialized, absl::Status& status);

}  // namespace bucketd::client
