#include "server/process/connections.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <sys/eventfd.h>
#include <sys/socket.h>

#include "httplib.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPauseWithoutFiles{100};

int NonBlocking(int socket) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  return socket;
}

bool WouldBlock() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

Connections::Connections(int listener, Handlers handlers)
    : handlers_(std::move(handlers)),
      listener_(NonBlocking(listener)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      workers_(std::make_unique<httplib::ThreadPool>(kWorkers)),
      thread_([this] { Loop(); }) {}

Connections::~Connections() {
  workers_->shutdown();
  {
    const absl::MutexLock lock(&mutex_);
    over_ = true;
  }
  Wake();
  thread_.join();
  for (const Connection& connection : connections_) close(connection.socket);
  close(listener_);
  close(wake_);
}

void Connections::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(wake_, &one, sizeof(one));  // only full if it wakes
}

void Connections::Loop() {
  while (true) {
    Wait();
    {
      const absl::MutexLock lock(&mutex_);
      if (over_) return;
    }
    TakeAnswers();
    AcceptAll();
  }
}

// Until something can be done; then does what reading and writing can.
void Connections::Wait() {
  std::array<pollfd, kMax + 2> polled{};
  size_t count = 0;
  polled[count++] = {wake_, POLLIN, 0};
  polled[count++] = {out_of_files_ ? -1 : listener_, POLLIN, 0};
  Time next = Clock::now() + (out_of_files_ ? kPauseWithoutFiles : std::chrono::minutes(1));
  out_of_files_ = false;
  for (const Connection& connection : connections_) {
    const bool working = connection.stage == Connection::Stage::kWorking;
    const bool reading = connection.stage == Connection::Stage::kReading;
    polled[count++] = {working ? -1 : connection.socket,
                       static_cast<int16_t>(reading ? POLLIN : POLLOUT), 0};
    if (!working) next = std::min(next, connection.until);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  poll(polled.data(), count, static_cast<int>(std::max<int64_t>(left, 0)));

  uint64_t woken = 0;
  [[maybe_unused]] const ssize_t got = read(wake_, &woken, sizeof(woken));
  const Time now = Clock::now();
  size_t i = 2;
  for (auto at = connections_.begin(); at != connections_.end(); ++i) {
    const Place connection = at++;
    if (connection->stage == Connection::Stage::kWorking) continue;
    if (connection->until <= now) {
      Close(connection);
    } else if (polled[i].revents != 0) {
      connection->stage == Connection::Stage::kReading ? ReadHead(connection) : Write(connection);
    }
  }
}

void Connections::AcceptAll() {
  while (true) {
    const int socket = accept(listener_, nullptr, nullptr);  // what accept4 takes is counted
    if (socket < 0) {
      out_of_files_ = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      if (errno != ECONNABORTED) return;
      continue;
    }
    if (connections_.size() == kMax) MakeRoom();
    fcntl(socket, F_SETFD, FD_CLOEXEC);
    Connection& made = connections_.emplace_back();
    made.id = ++last_id_;
    made.socket = NonBlocking(socket);
    made.until = Clock::now() + kHeadTime;
    // Most clients have sent their request by now.
    ReadHead(std::prev(connections_.end()));
  }
}

// Whoever has had the most time. There are more places than workers have requests.
void Connections::MakeRoom() {
  static_assert(kMaxWorking < kMax);
  Close(std::find_if(connections_.begin(), connections_.end(), [](const Connection& connection) {
    return connection.stage != Connection::Stage::kWorking;
  }));
}

void Connections::ReadHead(Place connection) {
  std::string& head = connection->head;
  std::array<char, kMaxHead> bytes{};
  const ssize_t got = recv(connection->socket, bytes.data(), kMaxHead - head.size(), 0);
  if (got < 0 && WouldBlock()) return;
  if (got <= 0) {
    Close(connection);
    return;
  }
  const size_t before = head.size();
  head.append(bytes.data(), static_cast<size_t>(got));
  const size_t end = head.find("\r\n\r\n", before < 3 ? 0 : before - 3);
  if (end != std::string::npos) {
    head.resize(end + 4);
    Dispatch(*connection);
    if (connection->stage == Connection::Stage::kWriting) Write(connection);
  } else if (head.size() == kMaxHead) {
    Close(connection);
  }
}

void Connections::Dispatch(Connection& connection) {
  if (handlers_.at_once(connection.head)) {
    Send(connection, handlers_.answer(connection.head));
  } else if (working_ == kMaxWorking) {
    Send(connection, handlers_.busy);
  } else {
    ++working_;
    connection.stage = Connection::Stage::kWorking;
    workers_->enqueue([this, id = connection.id, head = std::move(connection.head)] {
      std::string answer = handlers_.answer(head);
      {
        const absl::MutexLock lock(&mutex_);
        answers_.emplace_back(id, std::move(answer));
      }
      Wake();
    });
  }
}

void Connections::TakeAnswers() {
  std::vector<std::pair<uint64_t, std::string>> answers;
  {
    const absl::MutexLock lock(&mutex_);
    answers.swap(answers_);
  }
  for (auto& [id, answer] : answers) {
    --working_;
    const auto connection = std::find_if(connections_.begin(), connections_.end(),
                                         [id = id](const Connection& one) { return one.id == id; });
    Send(*connection, std::move(answer));
    Write(connection);
  }
}

void Connections::Send(Connection& connection, std::string answer) {
  connection.stage = Connection::Stage::kWriting;
  connection.answer = std::move(answer);
  connection.until = Clock::now() + kAnswerTime;
}

void Connections::Write(Place connection) {
  const std::string& answer = connection->answer;
  while (connection->written < answer.size()) {
    const ssize_t sent = send(connection->socket, answer.data() + connection->written,
                              answer.size() - connection->written, MSG_NOSIGNAL);
    if (sent < 0 && WouldBlock()) return;
    if (sent <= 0) break;
    connection->written += static_cast<size_t>(sent);
  }
  Close(connection);
}

void Connections::Close(Place connection) {
  close(connection->socket);
  connections_.erase(connection);
}

}  // namespace bucketd
