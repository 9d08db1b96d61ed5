// An agent's collector that keeps all that it hears.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "gpu_agent/telemetry/collector.h"
#include "tests/temp_folder.h"

namespace bucketd::agent {

class HeardRecords final : public CollectorEvents {
 public:
  // At a socket of its own, or at `socket`.
  explicit HeardRecords(const std::string& socket = "")
      : socket_(socket.empty() ? folder_.path() + "/agent" : socket) {
    auto started = Collector::Start({.socket = socket_}, *this);
    EXPECT_TRUE(started.ok()) << started.status();
    collector_ = *std::move(started);
  }

  void Opened(int) override { ++opened_; }
  void Refused(const std::string& why) override { ADD_FAILURE() << why; }
  void Ran(int, const RingReader& reader, const std::vector<RunRecord>& records) override {
    const std::lock_guard lock(mutex_);
    records_.insert(records_.end(), records.begin(), records.end());
    links_ = reader.links();
    plans_ = reader.plans();
    job_ = reader.job();
    dropped_ = reader.dropped();
    EXPECT_EQ(reader.invalid(), 0u);
  }
  void Closed(int, const std::string& why) override { EXPECT_EQ(why, ""); }

  const std::string& socket() const { return socket_; }
  // When there are so many, or after a while; all that was heard.
  std::vector<RunRecord> Wait(size_t count, absl::Duration patience = absl::Minutes(1)) {
    for (const absl::Time begin = absl::Now(); absl::Now() < begin + patience;
         absl::SleepFor(absl::Milliseconds(5))) {
      const std::lock_guard lock(mutex_);
      if (records_.size() >= count) break;
    }
    const std::lock_guard lock(mutex_);
    return records_;
  }
  // Of the rings' ends all is read.
  std::vector<RunRecord> End() {
    collector_ = nullptr;
    return records_;
  }
  int opened() const { return opened_; }
  std::vector<RingLink> links() const { return Locked(links_); }
  std::vector<RingPlan> plans() const { return Locked(plans_); }
  std::string job() const { return Locked(job_); }
  uint64_t dropped() const { return Locked(dropped_); }

 private:
  template <typename T>
  T Locked(const T& what) const {
    const std::lock_guard lock(mutex_);
    return what;
  }

  const TempFolder folder_;
  const std::string socket_;
  mutable std::mutex mutex_;
  std::vector<RunRecord> records_;
  std::vector<RingLink> links_;
  std::vector<RingPlan> plans_;
  std::string job_;
  uint64_t dropped_ = 0;
  std::atomic<int> opened_{0};
  std::unique_ptr<Collector> collector_;
};

}  // namespace bucketd::agent
