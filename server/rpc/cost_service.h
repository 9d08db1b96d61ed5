// The CostProfiles service of proto/cost_service.proto.
#pragma once

#include <atomic>
#include <memory>

#include "grpcpp/impl/service_type.h"

#include "server/base/metrics.h"
#include "server/base/timers.h"
#include "server/config/options.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_metrics.h"
#include "server/costs/cost_samples.h"
#include "server/rpc/admission.h"

namespace bucketd {

struct CostServiceParts {  // all outlive the gRPC server
  CostCatalog& catalog;
  CostSamples& samples;
  CostMetrics& cost_metrics;
  ServerMetrics& metrics;
  Timers& timers;
  const ServerOptions& options;
  const std::atomic<bool>& draining;
  const Admission& admission;
};

std::unique_ptr<grpc::Service> MakeCostService(const CostServiceParts& parts);

}  // namespace bucketd
