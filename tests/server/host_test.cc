// Where a call comes from.
#include "server/base/host.h"

#include <string>

#include "gtest/gtest.h"
#include <arpa/inet.h>
#include <netinet/in.h>

namespace bucketd {
namespace {

sockaddr_storage SocketAddress(const std::string& text) {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    address.ss_family = AF_INET6;
  }
  return address;
}

TEST(HostTest, AllAddressesOfANetworkOfIpv6AreOneHost) {
  for (const char* one : {"ipv6:[2001:db8:1:2::7]:4711", "ipv6:[2001:db8:1:2:ffff:1:2:3]:1",
                          "ipv6:%5B2001:db8:1:2::9%5D:80", "ipv6:[2001:db8:1:2::7%25eth0]:80",
                          "ipv6:%5B2001:db8:1:2::7%25eth0%5D:80", "ipv6:[2001:db8:1:2::7]"}) {
    EXPECT_EQ(HostOf(one), "ipv6:[2001:db8:1:2::]") << one;
  }
  EXPECT_EQ(HostOf("ipv6:[2001:db8:1:3::7]:4711"), "ipv6:[2001:db8:1:3::]");
  EXPECT_EQ(HostOf("ipv6:[fe80::1]:7"), HostOf("ipv6:[fe80::2]:7"));
}

TEST(HostTest, AnAddressOfIpv4IsAHostHoweverItIsWritten) {
  for (const char* one : {"ipv4:10.0.0.7:4711", "ipv4:10.0.0.7", "ipv6:[::ffff:10.0.0.7]:1",
                          "ipv6:%5B::ffff:10.0.0.7%5D:1"}) {
    EXPECT_EQ(HostOf(one), "ipv4:10.0.0.7") << one;
  }
  EXPECT_EQ(HostOf("ipv4:10.0.0.8:4711"), "ipv4:10.0.0.8");
}

TEST(HostTest, WhatIsNoInternetAddressIsWhatItIs) {
  EXPECT_EQ(HostOf("unix:/run/bucketd"), "unix");
  EXPECT_EQ(HostOf("unix:"), "unix");
  EXPECT_EQ(HostOf("ipv6:[nonsense]:1"), "ipv6:[nonsense]");
  EXPECT_EQ(HostOf(""), "");
}

TEST(HostTest, ASocketsHostIsThatOfItsCalls) {
  EXPECT_EQ(HostOf(SocketAddress("10.0.0.7")), "ipv4:10.0.0.7");
  EXPECT_EQ(HostOf(SocketAddress("::ffff:10.0.0.7")), "ipv4:10.0.0.7");
  EXPECT_EQ(HostOf(SocketAddress("2001:db8:1:2::7")), HostOf("ipv6:[2001:db8:1:2::8]:1"));
  EXPECT_EQ(HostOf(SocketAddress("::1")), HostOf("ipv6:[::1]:1"));
  EXPECT_EQ(HostOf(SocketAddress("")), "");
}

TEST(HostTest, PeopleAreToldTheWholeAddress) {
  EXPECT_EQ(AddressOf("ipv6:[2001:db8:1:2::7]:4711"), "ipv6:[2001:db8:1:2::7]");
  EXPECT_EQ(AddressOf("ipv4:10.0.0.7:4711"), "ipv4:10.0.0.7");
}

}  // namespace
}  // namespace bucketd
