// From where the Admin service may be used without TLS.
#include "server/rpc/admission.h"

#include "gtest/gtest.h"

namespace bucketd {
namespace {

TEST(AdminPeer, OnlyThisMachineUnlessTheOperatorSaysOtherwise) {
  for (const char* local :
       {"unix:", "unix:/run/bucketd/socket", "ipv4:127.0.0.1:4711", "ipv6:[::1]:4711",
        "ipv6:%5B::1%5D:4711", "ipv6:%5B::ffff:127.0.0.1%5D:1"}) {
    EXPECT_TRUE(CheckAdminPeer("local", local).ok()) << local;
  }
  for (const char* remote : {"ipv4:10.0.0.7:127", "ipv4:128.0.0.1:1", "ipv6:[::12]:1", "",
                             "ipv6:%5B2001:db8::1%5D:1", "ipv4:1.127.0.0:1"}) {
    const absl::Status refused = CheckAdminPeer("local", remote);
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << remote;
    EXPECT_TRUE(CheckAdminPeer("remote", remote).ok()) << remote;
  }
  EXPECT_FALSE(CheckAdminPeer("off", "unix:").ok());
}

}  // namespace
}  // namespace bucketd
