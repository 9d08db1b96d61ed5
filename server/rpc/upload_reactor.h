// The transport of one UploadGraph call.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "proto/planner.pb.h"
#include "server/rpc/service_parts.h"

namespace bucketd {

// Deletes itself when gRPC is done with it.
grpc::ServerReadReactor<v1::UploadGraphRequest>* NewUploadReactor(
    const ServiceParts& parts, grpc::CallbackServerContext* context,
    v1::UploadGraphResponse* response);

}  // namespace bucketd
