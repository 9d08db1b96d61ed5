// The proof of the token, byte by byte, against peers that cheat.
#include "gpu_agent/comm/handshake.h"

#include <fcntl.h>

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>

namespace bucketd::agent {
namespace {

constexpr char kToken[] = "a token that nobody else knows..";
constexpr size_t kHello = 8 + 32 + 8 + 4 + 4 + 128;
constexpr size_t kCode = 32;

std::pair<Fd, Fd> Connection() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

RingIdentity Rank(int rank) { return {.group = "dp", .epoch = 7, .rank = rank, .size = 4}; }

std::unique_ptr<Handshake> Client(Fd fd, const std::string& token = kToken) {
  return std::make_unique<Handshake>(std::move(fd), Handshake::Role::kClient, Rank(0), 1, token);
}
std::unique_ptr<Handshake> Server(Fd fd, const std::string& token = kToken) {
  return std::make_unique<Handshake>(std::move(fd), Handshake::Role::kServer, Rank(1), 0, token);
}

std::string ReadAll(const Fd& fd) {
  char bytes[4096];
  const ssize_t got = recv(fd.get(), bytes, sizeof(bytes), 0);
  return got > 0 ? std::string(bytes, static_cast<size_t>(got)) : "";
}

void Write(const Fd& fd, const std::string& bytes) {
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// An honest handshake with everything that went over the wire, passed on a byte at a time.
struct Recorded {
  std::string hello;
  std::string reply;
  std::string proof;
};
Recorded Honest() {
  auto [client_fd, to_client] = Connection();
  auto [server_fd, to_server] = Connection();
  const auto client = Client(std::move(client_fd));
  const auto server = Server(std::move(server_fd));
  const auto pass = [](const Fd& from, const Fd& to, Handshake& reader) {
    const std::string all = ReadAll(from);
    for (const char byte : all) {
      Write(to, std::string(1, byte));
      reader.Advance();
    }
    return all;
  };
  EXPECT_EQ(client->Advance(), Verdict::kPending);
  Recorded recorded;
  recorded.hello = pass(to_client, to_server, *server);
  recorded.reply = pass(to_server, to_client, *client);
  recorded.proof = pass(to_client, to_server, *server);
  EXPECT_EQ(server->Advance(), Verdict::kAccepted);
  EXPECT_EQ(pass(to_server, to_client, *client).size(), 1u);
  EXPECT_EQ(client->Advance(), Verdict::kAccepted);
  return recorded;
}

TEST(Handshake, HonestRanksAcceptEachOther) {
  const Recorded recorded = Honest();
  EXPECT_EQ(recorded.hello.size(), kHello);
  EXPECT_EQ(recorded.reply.size(), kHello + kCode);
  EXPECT_EQ(recorded.proof.size(), kCode);
  EXPECT_THAT(recorded.hello + recorded.reply + recorded.proof,
              Not(testing::HasSubstr(std::string(kToken).substr(0, 8))));
}

TEST(Handshake, AServerWantsTheProof) {
  for (const std::string& proof : {std::string(kCode, '\0'), Honest().proof}) {
    auto [fd, cheat] = Connection();
    const auto server = Server(std::move(fd));
    Write(cheat, Honest().hello);
    EXPECT_EQ(server->Advance(), Verdict::kPending);
    EXPECT_EQ(ReadAll(cheat).size(), kHello + kCode);
    Write(cheat, proof);
    EXPECT_EQ(server->Advance(), Verdict::kRefused);
    EXPECT_EQ(ReadAll(cheat), "");
  }
}

TEST(Handshake, RecordedMessagesAreOfNoUse) {
  const Recorded recorded = Honest();
  auto [server_fd, to_server] = Connection();
  const auto server = Server(std::move(server_fd));
  Write(to_server, recorded.hello);
  EXPECT_EQ(server->Advance(), Verdict::kPending);
  Write(to_server, recorded.proof);
  EXPECT_EQ(server->Advance(), Verdict::kRefused);

  auto [client_fd, to_client] = Connection();
  const auto client = Client(std::move(client_fd));
  client->Advance();
  Write(to_client, recorded.reply);
  EXPECT_EQ(client->Advance(), Verdict::kRefused);
  EXPECT_EQ(ReadAll(to_client).size(), kHello);  // and no proof for a server that has none
}

// Its own hello comes back.
TEST(Handshake, AReflectionIsAStranger) {
  auto [fd, cheat] = Connection();
  const auto client = Client(std::move(fd));
  client->Advance();
  const std::string hello = ReadAll(cheat);
  Write(cheat, hello + std::string(kCode, 'x'));
  EXPECT_EQ(client->Advance(), Verdict::kStranger);
}

// The server's code of this very connection, sent back as if it were the client's.
TEST(Handshake, ACodeIsOfOneRoleOnly) {
  auto [fd, cheat] = Connection();
  const auto server = Server(std::move(fd));
  Write(cheat, Honest().hello);
  server->Advance();
  Write(cheat, ReadAll(cheat).substr(kHello));
  EXPECT_EQ(server->Advance(), Verdict::kRefused);
}

TEST(Handshake, WhoIsUnderTheCodes) {
  auto [client_fd, to_client] = Connection();
  auto [server_fd, to_server] = Connection();
  const auto client = Client(std::move(client_fd));
  const auto server = Server(std::move(server_fd));
  client->Advance();
  std::string hello = ReadAll(to_client);
  hello[8 + 32] ^= 1;  // the epoch
  Write(to_server, hello);
  server->Advance();
  Write(to_client, ReadAll(to_server));
  EXPECT_EQ(client->Advance(), Verdict::kRefused);
}

TEST(Handshake, WhoGoesAwayIsAStrangerUnlessItSawTheCode) {
  {
    auto [fd, peer] = Connection();
    const auto server = Server(std::move(fd));
    Write(peer, "bktring1");
    EXPECT_EQ(server->Advance(), Verdict::kPending);
    peer = Fd();
    EXPECT_EQ(server->Advance(), Verdict::kStranger);
  }
  auto [fd, peer] = Connection();
  const auto server = Server(std::move(fd));
  Write(peer, Honest().hello);
  EXPECT_EQ(server->Advance(), Verdict::kPending);
  ReadAll(peer);
  peer = Fd();
  EXPECT_EQ(server->Advance(), Verdict::kRefused);
  EXPECT_THAT(std::string(server->error().message()), testing::HasSubstr("another token"));
}

}  // namespace
}  // namespace bucketd::agent
