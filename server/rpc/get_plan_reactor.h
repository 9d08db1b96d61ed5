// The transport of one GetPlan call, whose request and response are bytes.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

#include "server/rpc/service_parts.h"

namespace bucketd {

// Deletes itself when gRPC is done with it. A large request is read on a worker, if there is room
// for it.
grpc::ServerUnaryReactor* NewGetPlanReactor(const ServiceParts& parts,
                                            grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response);

}  // namespace bucketd
