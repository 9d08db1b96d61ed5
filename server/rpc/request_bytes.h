// Requests as bytes, which gRPC hands over for methods that are said to be raw
// (WithRawCallbackMethod_*), as all of ours are. Of others it parses the request on a thread of its
// own before anybody is asked whether he may call, at the transport's limit of bytes, of which two
// may take sixteen when they are parsed; and it keeps what it parsed until the call has ended and
// its caller has read that.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf

namespace bucketd {

// Of a request that is read at once, on gRPC's thread.
inline constexpr int64_t kMostRequestBytes = int64_t{64} << 10;
// For what is read on a worker, and bounded or counted by whoever reads it.
inline constexpr int64_t kAsTransportAllows = std::numeric_limits<int64_t>::max();

// Copies share the bytes. Not thread-safe.
class RequestBytes {
 public:
  RequestBytes() = default;
  // Takes them from gRPC.
  explicit RequestBytes(const grpc::ByteBuffer* given);

  int64_t size() const { return static_cast<int64_t>(bytes_.Length()); }
  const grpc::ByteBuffer& bytes() const { return bytes_; }
  void Clear() { bytes_.Clear(); }

  // The message; the bytes are gone then, whatever comes of it. REQUEST_TOO_LARGE, with the limit,
  // before anything is parsed; REQUEST_MALFORMED.
  template <typename Message>
  absl::StatusOr<Message> Read(int64_t most = kMostRequestBytes) {
    Message message;
    const absl::Status read = ReadInto(message, most);
    if (!read.ok()) return read;
    return message;
  }

 private:
  absl::Status ReadInto(google::protobuf::MessageLite& message, int64_t most);

  grpc::ByteBuffer bytes_;
};

// What a call that ends well answers.
grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& response);
// The same for many calls, and the same memory: `bytes` are `owner`'s.
grpc::Slice Share(std::shared_ptr<const void> owner, absl::string_view bytes);

}  // namespace bucketd
