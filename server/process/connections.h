// The connections of a port that answers short GET requests, one a connection: bounded in number,
// bytes and time, whatever their other ends do. One thread reads the heads of requests and writes
// answers for all of them, so a client that sends or reads slowly, or not at all, costs a place in
// a table and holds up nobody. Where the table is full the oldest connection that no worker has
// makes room.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace httplib {
class TaskQueue;
}  // namespace httplib

namespace bucketd {

class Connections {
 public:
  struct Handlers {
    // From a request's head, with its empty line, to all bytes of the answer. On a worker, or on
    // the thread of all connections where `at_once` says so: then it must be short and wait for
    // nothing.
    std::function<std::string(const std::string& head)> answer;
    std::function<bool(absl::string_view head)> at_once;
    // Of a request for which there is no worker.
    std::string busy;
  };

  static constexpr size_t kMax = 128;        // connections
  static constexpr size_t kMaxHead = 8192;   // bytes; more closes the connection
  static constexpr size_t kMaxWorking = 32;  // requests that workers have or are to have
  static constexpr int kWorkers = 2;
  // For a whole head from when the connection was accepted, and for a whole answer to be read.
  static constexpr std::chrono::seconds kHeadTime{2};
  static constexpr std::chrono::seconds kAnswerTime{10};

  // Serves from then on. Takes `listener`, a socket that listens, over.
  Connections(int listener, Handlers handlers);
  ~Connections();  // closes all, once what workers have is done
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Connection {
    enum class Stage { kReading, kWorking, kWriting };
    uint64_t id = 0;
    int socket = -1;
    Time until;
    Stage stage = Stage::kReading;
    std::string head;
    std::string answer;
    size_t written = 0;
  };
  using Place = std::list<Connection>::iterator;

  void Loop();
  void Wait();
  void AcceptAll();
  void MakeRoom();
  void ReadHead(Place connection);
  void Dispatch(Connection& connection);
  void TakeAnswers();
  void Send(Connection& connection, std::string answer);
  void Write(Place connection);
  void Close(Place connection);
  void Wake();

  const Handlers handlers_;
  const int listener_;
  const int wake_;  // an eventfd: answers are there, or it is over
  // Of the loop's thread alone.
  std::list<Connection> connections_;  // the oldest first
  uint64_t last_id_ = 0;
  size_t working_ = 0;
  bool out_of_files_ = false;  // no more sockets can be accepted for now

  absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<uint64_t, std::string>> answers_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<httplib::TaskQueue> workers_;
  std::jthread thread_;
};

}  // namespace bucketd
