// The transport of one UploadGraph call.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

#include "server/rpc/service_parts.h"

namespace bucketd {

// Deletes itself when gRPC is done with it.
grpc::ServerReadReactor<grpc::ByteBuffer>* NewUploadReactor(const ServiceParts& parts,
                                                            grpc::CallbackServerContext* context,
                                                            grpc::ByteBuffer* response);

}  // namespace bucketd
