// The CostProfiles service of proto/cost_service.proto.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/impl/service_type.h"

#include "server/base/metrics.h"
#include "server/base/timers.h"
#include "server/config/cost_options.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_metrics.h"
#include "server/costs/cost_samples.h"

namespace bucketd {

struct CostServiceParts {  // all outlive the gRPC server
  CostCatalog& catalog;
  CostSamples& samples;
  CostMetrics& cost_metrics;
  ServerMetrics& metrics;
  Timers& timers;
  const CostOptions& options;
  std::chrono::milliseconds stall;  // a report that sends nothing for this long is ended
  const std::atomic<bool>& draining;
  // Whether the caller at this address may change profiles; empty: everybody may.
  std::function<absl::Status(absl::string_view peer)> may_change;
};

std::unique_ptr<grpc::Service> MakeCostService(const CostServiceParts& parts);

}  // namespace bucketd
