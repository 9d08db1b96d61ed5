// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status, which Debian's Abseil does not bring.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define BUCKETD_CONCAT_INNER(a, b) a##b
#define BUCKETD_CONCAT(a, b) BUCKETD_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expr)                        \
  do {                                               \
    absl::Status bucketd_status = (expr);            \
    if (!bucketd_status.ok()) return bucketd_status; \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expr) \
  BUCKETD_ASSIGN_OR_RETURN(BUCKETD_CONCAT(bucketd_statusor_, __LINE__), lhs, expr)

#define BUCKETD_ASSIGN_OR_RETURN(statusor, lhs, expr)      \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = *std::move(statusor)
