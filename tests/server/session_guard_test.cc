// A gRPC server that speaks TLS, and a client that floods it inside the session.
#include "server/rpc/session_guard.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "server/rpc/connection_guard.h"
#include "server/rpc/unfinished_messages.h"

namespace bucketd {
namespace {

constexpr char kHello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";  // and settings
const std::string kBegin(kHello, sizeof(kHello));
// Of stream 1, which is not there; and a ping, which is answered.
const std::string kReset("\0\0\4\3\0\0\0\0\1\0\0\0\x8", 13);
const std::string kPing("\0\0\x8\6\0\0\0\0\0pingpong", 17);
const std::string kPong("\0\0\x8\6\1\0\0\0\0pingpong", 17);

std::string Times(int n, const std::string& frame) {
  std::string out;
  for (int i = 0; i < n; ++i) out += frame;
  return out;
}

template <typename Write>
std::string Pem(const Write& write) {
  const std::unique_ptr<BIO, int (*)(BIO*)> out(BIO_new(BIO_s_mem()), BIO_free);
  EXPECT_EQ(write(out.get()), 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<size_t>(size)};
}

// Of localhost, signed by itself.
grpc::SslServerCredentialsOptions::PemKeyCertPair MakeKeyAndCertificate() {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* name = X509_get_subject_name(certificate.get());
  const std::string host = "localhost";
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(host.data()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  EXPECT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  return {Pem([&](BIO* out) {
            return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          }),
          Pem([&](BIO* out) { return PEM_write_bio_X509(out, certificate.get()); })};
}

// Opens stream 1 with a call, in HPACK.
const std::string kCall = [] {
  const std::string block(
      "\x83\x86\4\4/a/b\1\x9localhost\xf\x10\x10"
      "application/grpc\0\2te\x8"
      "trailers",
      51);
  return std::string("\0\0", 2) + static_cast<char>(block.size()) + std::string("\1\4\0\0\0\1", 6) +
         block;
}();

std::string CallIn(char stream) {
  std::string frames = kCall;
  frames[8] = stream;
  return frames;
}

// The beginning of a message of a mebibyte in stream 1, or what comes then: so many bytes.
std::string Some(size_t bytes, bool first) {
  std::string frame = first ? std::string("\0\x10\0\0", 4) : "";
  frame.insert(0, first ? 1 : 0, '\0');
  frame.resize(bytes, 'm');
  const std::string size{static_cast<char>(bytes >> 16), static_cast<char>(bytes >> 8),
                         static_cast<char>(bytes)};
  return size + std::string("\0\0\0\0\0\1", 6) + frame;
}

// Never answers, though it may begin to, and reads nothing.
class Silent final : public grpc::CallbackGenericService {
 public:
  std::atomic<bool> begins = false;

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(bool begins) {
      if (begins) StartSendInitialMetadata();
    }

   private:
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor(begins);
  }
};

class SessionGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);  // where OpenSSL writes to a connection that is closed
    GuardConnections([this] { ++closed_sockets_; });
    GuardSessions([this] { ++closed_; }, {room_, 0, 3});
    grpc::SslServerCredentialsOptions credentials;
    credentials.pem_key_cert_pairs.push_back(MakeKeyAndCertificate());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(credentials), &port_);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    Connect();
  }
  void TearDown() override {
    SSL_free(session_);
    close(socket_);
    SSL_CTX_free(client_);
    server_->Shutdown(std::chrono::system_clock::now());
    GuardSessions(nullptr);
    GuardConnections(nullptr);
  }

  void Connect() {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ASSERT_EQ(setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    session_ = SSL_new(client_);
    SSL_set_fd(session_, socket_);
    constexpr unsigned char kH2[] = {2, 'h', '2'};
    SSL_set_alpn_protos(session_, kH2, sizeof(kH2));
    ASSERT_EQ(SSL_connect(session_), 1);
    Send(kBegin);
  }
  void Send(const std::string& bytes) const {
    const int sent = SSL_write(session_, bytes.data(), static_cast<int>(bytes.size()));
    ASSERT_TRUE(sent == static_cast<int>(bytes.size()) || closed_ > 0) << "it may have heard";
  }
  // What comes until it ends with `last`, or until the connection does.
  std::string ReadUntil(const std::string& last) const {
    std::string all;
    char part[4096];
    while (all.find(last) == std::string::npos) {
      const int bytes = SSL_read(session_, part, sizeof(part));
      if (bytes <= 0) {
        EXPECT_NE(SSL_get_error(session_, bytes), SSL_ERROR_WANT_READ)
            << "half a minute of silence";
        return all + " (the end)";
      }
      all.append(part, static_cast<size_t>(bytes));
    }
    return all;
  }

  // So many bytes, or up to `more` beyond.
  bool EventuallyUsed(int64_t bytes, int64_t more = 0) const {
    const auto used = [&] { return room_->used() >= bytes && room_->used() <= bytes + more; };
    for (int i = 0; i < 3000 && !used(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return used();
  }

  static constexpr int64_t kCallBytes = UnfinishedMessages::kCallBytes;
  // gRPC decrypts into 8 KiB at a time: the first and the last may hold something else, too.
  static constexpr int64_t kMemory = 3 * 8192;
  const std::shared_ptr<ByteRoom> room_ = std::make_shared<ByteRoom>(240'000);
  std::atomic<int> closed_{0};
  std::atomic<int> closed_sockets_{0};
  Silent service_;

 private:
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  SSL_CTX* const client_ = SSL_CTX_new(TLS_client_method());
  int socket_ = -1;
  SSL* session_ = nullptr;
};

TEST_F(SessionGuardTest, AFloodInsideTlsEndsItsConnection) {
  Send(Times(400, kReset) + kPing);
  EXPECT_NE(ReadUntil(kPong).find(kPong), std::string::npos) << "what the budget allows is read";
  EXPECT_EQ(closed_, 0);
  Send(Times(1000, kReset) + kPing);
  EXPECT_EQ(ReadUntil(kPong).find(kPong), std::string::npos);
  EXPECT_EQ(closed_, 1);
  EXPECT_EQ(closed_sockets_, 0) << "who sees encrypted bytes counts nothing";
}

TEST_F(SessionGuardTest, CallsInsideTlsAreBounded) {
  Send(CallIn(1) + CallIn(3) + CallIn(5) + kPing);
  EXPECT_EQ(ReadUntil(kPong).find("(the end)"), std::string::npos);
  Send(CallIn(7) + kPing);
  EXPECT_NE(ReadUntil("never").find("(the end)"), std::string::npos);
  EXPECT_EQ(closed_, 1);
  EXPECT_TRUE(EventuallyUsed(0));
}

TEST_F(SessionGuardTest, AnswersInsideTlsThatHaveBegunAreBounded) {
  service_.begins = true;
  Send(CallIn(1) + CallIn(3) + kPing);
  EXPECT_TRUE(EventuallyUsed(2 * (kCallBytes + UnfinishedMessages::kAnswerBytes)));
  Send(CallIn(5));
  EXPECT_NE(ReadUntil("never").find("(the end)"), std::string::npos);
  EXPECT_EQ(closed_, 1);
  EXPECT_TRUE(EventuallyUsed(0));
}

TEST_F(SessionGuardTest, UnfinishedMessagesInsideTlsAreBoundedAndGivenBack) {
  Send(kCall + Some(15'000, true));
  EXPECT_TRUE(EventuallyUsed(kCallBytes + 15'000, kMemory));
  Send(kReset);
  EXPECT_TRUE(EventuallyUsed(0));
}

TEST_F(SessionGuardTest, WhoHoldsMoreInsideTlsThanThereIsRoomForIsEnded) {
  Send(kCall + Some(15'000, true) + Times(4, Some(12'000, false)) + kPing);
  EXPECT_TRUE(EventuallyUsed(kCallBytes + 63'000, kMemory));
  Send(Times(4, Some(12'000, false)) + kPing);
  EXPECT_NE(ReadUntil("never").find("(the end)"), std::string::npos);
  EXPECT_EQ(closed_, 1);
  EXPECT_TRUE(EventuallyUsed(0));
}

}  // namespace
}  // namespace bucketd
