// Errors as clients see them: an absl::Status that carries google.rpc.ErrorInfo (and RetryInfo) as
// payloads. The table of proto/REASONS.md, in code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bucketd {

enum class Reason {
  kDigestMalformed,
  kDigestMismatch,
  kContentMismatch,
  kGraphMalformed,
  kGraphTooLarge,
  kChunkTooLarge,
  kUploadProtocol,
  kCodecUnknown,
  kRequestMalformed,
  kRequestTooLarge,
  kOptionsInvalid,
  kMeshInvalid,
  kProfileUnknown,
  kProfileInvalid,
  kProfileUnreadable,
  kProfileLimit,
  kNoEarlierVersion,
  kNoSamples,
  kStoreUnavailable,
  kPlanNotCached,
  kPlanImpossible,
  kDeadline,
  kCancelled,
  kOverloaded,
  kQuotaUsedUp,
  kDraining,
  kClientTooOld,
  kPlanningDisabled,
  kAdminNotAllowed,
  kCallerUnknown,
  kRoleMissing,
  kTenantDiffers,
  kJobInvalid,
  kRanksDiffer,
  kRanksMissing,
  kGenerationOver,
  kRendezvousDiffers,
  kEpochUnknown,
  kPlannerBug,
};

// What ErrorInfo.metadata says; -1 and "" are left out.
struct ErrorFields {
  int64_t limit = -1;
  int64_t actual = -1;
  std::string node = {};
  bool lasting = false;  // QUOTA_USED_UP that does not pass by itself
};

// The first `most` bytes, less what would be a part of a character, and then " ...".
std::string Clip(absl::string_view text, size_t most);

absl::string_view ReasonName(Reason reason);

// The code follows from the reason; long messages are cut, since they travel in headers. OVERLOADED
// and DRAINING also say when to come back, and so does QUOTA_USED_UP unless it lasts.
absl::Status MakeError(Reason reason, absl::string_view message, const ErrorFields& fields = {});
// What every call is told while the server shuts down (DRAINING), and who went away (CANCELLED).
absl::Status DrainingError();
absl::Status CallerGone();
// `status` with a reason and its code; the message stays. For errors of the passes, which have
// none.
absl::Status WithReason(Reason reason, const absl::Status& status);

// The reason's name, "" if `status` carries none.
std::string ReasonOf(const absl::Status& status);
// A serialised google.rpc.Status: what travels as grpc-status-details-bin.
std::string SerializeRpcStatus(const absl::Status& status);
// What was serialised. What is none, or OK, is INTERNAL: it was to be an error.
absl::Status ParseRpcStatus(absl::string_view bytes);

}  // namespace bucketd
