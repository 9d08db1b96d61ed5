// Callers of GetPlan: many calls outstanding from one thread, replies as bytes that nobody parses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace bucketd {

struct LoadResult {
  int64_t requests = 0;
  std::vector<float> micros;  // latency of each
  int64_t failed = 0;         // not OK, or other bytes than expected
};

// 0 to 100.
double Percentile(std::vector<float>& values, double percent);

class Load {
 public:
  // min(outstanding, 64) connections of their own; waits until they stand. `tls`: as FreshChannel.
  Load(const std::string& address, int outstanding, const std::string& tls = "");

  // Keeps `outstanding` calls under way for so long; the replies have `reply_bytes`.
  LoadResult Run(const std::string& request, size_t reply_bytes, double seconds);

 private:
  const int outstanding_;
  std::vector<std::shared_ptr<grpc::GenericStub>> stubs_;
};

struct StormResult {
  double wall_seconds = 0;  // from before the first connection to after the last plan
  int32_t computed = 0;     // replies by source
  int32_t plans = 0;
  int32_t failed = 0;
};

// `connections` fresh connections, one call each, all at once. Whoever is asked for the graph sends
// it (`request` with the graph inside: `with_graph`) and waits on. Replies must be plans with the
// same bytes, apart from their source.
StormResult Storm(const std::string& address, int connections, const std::string& request,
                  const std::string& with_graph, const std::string& tls = "");

// `tls`: a folder with ca.pem, client.pem and client.key, for mutual TLS; "": none.
std::shared_ptr<grpc::Channel> FreshChannel(const std::string& address,
                                            const std::string& tls = "");
// Empty on an error.
std::string CallOnce(const std::shared_ptr<grpc::Channel>& channel, const std::string& request);

}  // namespace bucketd
