#include "server/rpc/request_bytes.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/impl/codegen/proto_utils.h"

#include "server/base/errors.h"

namespace bucketd {

RequestBytes::RequestBytes(const grpc::ByteBuffer* given) {
  bytes_.Swap(const_cast<grpc::ByteBuffer*>(given));
}

absl::Status RequestBytes::ReadInto(google::protobuf::MessageLite& message, int64_t most) {
  grpc::ByteBuffer bytes;
  bytes.Swap(&bytes_);
  const auto size = static_cast<int64_t>(bytes.Length());
  if (size > most) {
    return MakeError(
        Reason::kRequestTooLarge,
        absl::StrCat("a ", message.GetTypeName(), " of ", size, " bytes; at most ", most),
        {.limit = most, .actual = size});
  }
  grpc::ProtoBufferReader reader(&bytes);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return MakeError(Reason::kRequestMalformed,
                   absl::StrCat("not a serialised ", message.GetTypeName()));
}

grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& response) {
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Slice Share(std::shared_ptr<const void> owner, absl::string_view bytes) {
  return {const_cast<char*>(bytes.data()), bytes.size(),
          [](void* holder) { delete static_cast<std::shared_ptr<const void>*>(holder); },
          new std::shared_ptr<const void>(std::move(owner))};
}

}  // namespace bucketd
