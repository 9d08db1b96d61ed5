#include "gpu_agent/exec/executor.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "gpu_agent/device/steady.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {

// Events are null until what they mark is enqueued, and belong to the executor's mutex.
class Ticket : public Bound {
 public:
  explicit Ticket(Bound bound) : Bound(std::move(bound)) {}

  int32_t bucket = 0;
  bool open = true;      // nobody has joined it, or waited for its end
  uint64_t capture = 0;  // that it is a part of
  std::shared_ptr<Event> after;
  SteadyTime deadline;
  std::shared_ptr<Event> pack_begin, packed, wire_begin, arrived, unpack_begin, done;

  const std::shared_ptr<Event>& At(Phase phase) const {
    if (phase == Phase::kDone) return done;
    // Without a copy-in there is nothing to wait for.
    return phase == Phase::kPacked && packed != nullptr ? packed : arrived;
  }
  // Why it is not done, of one that has not been copied out.
  const char* lacks() const {
    return arrived == nullptr ? "waits for its turn" : "was not finished";
  }
  const Event& last() const { return done != nullptr ? *done : *arrived; }
  // Nothing of it is enqueued any more. `ask` the device, or go by what was seen.
  bool idle(bool ask) const { return ask ? last().done() : last().seen_done(); }
  // Of one that is idle: how it ended.
  absl::Status end() const { return last().Wait(absl::InfinitePast()); }
};

namespace {

constexpr absl::Duration kCloseLimit = absl::Seconds(10);

}  // namespace

Executor::Executor(Device& device, Program program, const ExecutorOptions& options)
    : device_(device),
      program_(std::move(program)),
      options_(options),
      binder_(program_),
      slots_(program_.buckets.size()) {}

Executor::~Executor() {
  const absl::Status closed = Close();
  if (closed.ok() || memory_ == nullptr) return;
  // The device would be lost to the whole process if it were unmapped under what runs.
  std::fprintf(stderr, "bucket executor: %s: %lld bytes of buckets are not freed\n",
               std::string(closed.message()).c_str(), static_cast<long long>(memory_->bytes()));
  [[maybe_unused]] const Buffer* left = memory_.release();
}

absl::Status Executor::Close() {
  {
    const std::lock_guard lock(mutex_);
    Forget(true);
    asked_ = true;
    if (!under_way_.empty()) Fail(absl::CancelledError("the executor was closed"));
    if (error_.ok()) error_ = absl::CancelledError("the executor is closed");
    closing_ = true;
  }
  close_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  if (!closed_.has_value()) closed_ = Drain();
  return *closed_;
}

// Everything enqueued has ended, and nothing uses the memory.
absl::Status Executor::Drain() {
  const SteadyTime deadline = SteadyIn(kCloseLimit);
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    RETURN_IF_ERROR(lane->stream->Drain(WallTime(deadline)));
  }
  for (const auto* stream : {&pack_, &unpack_}) {
    if (*stream != nullptr) RETURN_IF_ERROR((*stream)->Drain(WallTime(deadline)));
  }
  absl::Status ended;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    ended.Update(lane->channel.communicator->Close());
  }
  return ended;
}

absl::StatusOr<TicketPtr> Executor::NewTicket(int32_t bucket, const Payload& payload) {
  if (bucket < 0 || static_cast<size_t>(bucket) >= slots_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no bucket ", bucket, " among ", slots_.size()));
  }
  if (slots_[static_cast<size_t>(bucket)].waiting != nullptr) {
    return Of(bucket, absl::FailedPreconditionError("was started and waits for its turn"));
  }
  ASSIGN_OR_RETURN(Bound bound, binder_.Bind(bucket, RankIn(bucket), payload, memory(bucket)));
  auto ticket = std::make_shared<Ticket>(std::move(bound));
  ticket->bucket = bucket;
  ticket->after = payload.after;
  ticket->capture = payload.capture;
  return ticket;
}

// Events of one side of a capture's begin or end mean nothing on the other: what is over there has
// been joined, so the caller's streams order it.
absl::Status Executor::Enter(uint64_t capture) {
  if (capture == capture_) return absl::OkStatus();
  if (next_ != 0 || open_ > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a capture into a graph ", capture == 0 ? "ended" : "began", " in the midst of a run: ",
        open_, " buckets are not joined, and the plan goes on with its bucket ", next_, " of ",
        program_.starts.size(), "; capture the whole of what the plan is of, or nothing of it"));
  }
  capture_ = capture;
  held_.clear();
  last_lane_ = nullptr;
  last_arrived_ = nullptr;
  return absl::OkStatus();
}

absl::StatusOr<TicketPtr> Executor::Start(int32_t bucket, const Payload& payload) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(error_);
  RETURN_IF_ERROR(Enter(payload.capture));
  ASSIGN_OR_RETURN(TicketPtr ticket, NewTicket(bucket, payload));
  ++open_;
  slots_[static_cast<size_t>(bucket)].waiting = ticket;
  LaunchReady();
  RETURN_IF_ERROR(error_);
  return ticket;
}

absl::Status Executor::Finish(const TicketPtr& ticket, absl::Span<const Tensor> out) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(error_);
  if (!ticket->finish_later) {
    return Of(ticket->bucket, absl::FailedPreconditionError("has nothing to finish"));
  }
  if (!out.empty()) {
    const int32_t bucket = ticket->bucket;
    ASSIGN_OR_RETURN(ticket->out, binder_.CopyOutTo(bucket, RankIn(bucket), out, memory(bucket)));
  }
  ticket->finish_later = false;
  if (ticket->arrived != nullptr) {  // else its launch does the rest
    const absl::Status unpacked = Unpack(*ticket, *unpack_);
    if (!unpacked.ok()) Fail(unpacked);
    // It may have been forgotten when it had arrived.
    ticket->deadline = SteadyIn(options_.timeout);
    under_way_.push_back(ticket);
  }
  LaunchReady();
  if (waiters_ > 0) changed_.notify_all();
  return error_;
}

// Every bucket in turn that was started and whose memory nobody holds.
void Executor::LaunchReady() {
  Forget(false);
  while (error_.ok() && !program_.starts.empty()) {
    const int32_t bucket = program_.starts[next_];
    TicketPtr& waiting = slots_[static_cast<size_t>(bucket)].waiting;
    if (waiting == nullptr || !MemoryFree(bucket)) return;
    const TicketPtr ticket = std::move(waiting);
    waiting = nullptr;
    next_ = (next_ + 1) % program_.starts.size();
    const absl::Status launched = Launch(ticket);
    if (!launched.ok()) Fail(launched);
    if (waiters_ > 0) changed_.notify_all();
  }
}

bool Executor::MemoryFree(int32_t bucket) const {
  const BucketLayout& layout = program_.buckets[static_cast<size_t>(bucket)];
  const int64_t end = layout.memory_at + layout.memory_bytes;
  auto it = held_.upper_bound(layout.memory_at);
  if (it != held_.begin()) --it;
  for (; it != held_.end() && it->first < end; ++it) {
    if (it->second.end > layout.memory_at && it->second.by->done == nullptr) return false;
  }
  return true;
}

// Waits on `stream` for those whose bytes these were, and marks them as the ticket's.
void Executor::TakeMemory(const TicketPtr& ticket, Stream& stream) {
  const BucketLayout& layout = program_.buckets[static_cast<size_t>(ticket->bucket)];
  const int64_t begin = layout.memory_at, end = begin + layout.memory_bytes;
  if (begin == end) return;
  auto it = held_.upper_bound(begin);
  if (it != held_.begin()) --it;
  while (it != held_.end() && it->first < end) {
    const auto [from, held] = *it;
    if (held.end <= begin) {
      ++it;
      continue;
    }
    if (!held.by->done->seen_done()) stream.After(held.by->done);
    it = held_.erase(it);
    if (from < begin) held_[from] = {begin, held.by};
    if (held.end > end) it = held_.insert_or_assign(end, Held{held.end, held.by}).first;
  }
  held_[begin] = {end, ticket};
}

absl::Status Executor::Launch(const TicketPtr& ticket) {
  const auto k = static_cast<size_t>(ticket->bucket);
  Lane& lane = *slots_[k].lane;
  Stream& wire = *lane.stream;
  const bool on_wire = program_.plan.buckets[k].copies == CopyStream::kComm;
  Stream& pack = on_wire || ticket->in == nullptr ? wire : *pack_;
  ticket->deadline = SteadyIn(options_.timeout);
  if (ticket->after != nullptr) pack.After(std::move(ticket->after));
  TakeMemory(ticket, pack);
  if (ticket->in != nullptr) {
    ticket->pack_begin = pack.Record();
    RETURN_IF_ERROR(device_.CopyTiles(pack, ticket->in));
    ticket->packed = pack.Record();
    if (&pack != &wire) wire.After(ticket->packed);
  }
  const bool in_turn = lane.channel.communicator->holds_device();
  if (in_turn && last_lane_ != &lane && last_arrived_ != nullptr) wire.After(last_arrived_);
  ticket->wire_begin = wire.Record();
  const absl::Status launched = lane.channel.communicator->Launch(wire, ticket->group);
  if (!launched.ok()) return Of(ticket->bucket, launched);
  ticket->arrived = wire.Record();
  last_lane_ = &lane;
  last_arrived_ = ticket->arrived;
  // What a graph does at its replays nobody here can ask.
  if (ticket->capture == 0) under_way_.push_back(ticket);
  return ticket->finish_later ? absl::OkStatus() : Unpack(*ticket, on_wire ? wire : *unpack_);
}

absl::Status Executor::Unpack(Ticket& ticket, Stream& stream) {
  if (ticket.out == nullptr) {
    ticket.done = ticket.arrived;
    return absl::OkStatus();
  }
  stream.After(ticket.arrived);
  ticket.unpack_begin = stream.Record();
  RETURN_IF_ERROR(device_.CopyTiles(stream, ticket.out));
  ticket.done = stream.Record();
  return absl::OkStatus();
}

absl::Status Executor::Wait(const TicketPtr& ticket, Phase phase, absl::Time deadline) {
  std::shared_ptr<Event> event;
  const SteadyTime until = SteadyAt(deadline);
  {
    std::unique_lock lock(mutex_);
    if (ticket->capture != 0) {
      return Of(ticket->bucket, absl::FailedPreconditionError("is captured into a graph: join"));
    }
    const auto known = [&] { return ticket->At(phase) != nullptr || !error_.ok(); };
    ++waiters_;
    changed_.wait_until(lock, until, known);
    --waiters_;
    event = ticket->At(phase);
    if (event == nullptr) {
      RETURN_IF_ERROR(error_);
      return Of(ticket->bucket, absl::DeadlineExceededError(ticket->lacks()));
    }
  }
  const absl::Status status = event->Wait(WallTime(until));
  if (!status.ok() && !event->done()) return status;
  const std::lock_guard lock(mutex_);
  if (status.ok()) {
    if (event == ticket->done) Leave(*ticket);
    return status;
  }
  Fail(Of(ticket->bucket, status));
  return error_;
}

absl::Status Executor::Join(const TicketPtr& ticket, Stream& stream) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(error_);
  if (ticket->done == nullptr) {
    return Of(ticket->bucket, absl::FailedPreconditionError(ticket->lacks()));
  }
  ASSIGN_OR_RETURN(const uint64_t capture, stream.Capture());
  if (capture != ticket->capture) {
    return Of(ticket->bucket,
              absl::FailedPreconditionError("was started and is joined on two sides "
                                            "of a capture into a graph"));
  }
  stream.After(ticket->done);
  Leave(*ticket);
  return absl::OkStatus();
}

void Executor::Leave(Ticket& ticket) { open_ -= std::exchange(ticket.open, false) ? 1 : 0; }

bool Executor::done(const TicketPtr& ticket) const {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Event> done = ticket->capture == 0 ? ticket->done : nullptr;
  if (done == nullptr) return !error_.ok();
  lock.unlock();  // the device is asked without it
  return done->done();
}

absl::StatusOr<BucketTimes> Executor::Times(const TicketPtr& ticket, const Event* origin) const {
  const Ticket t = [&] {
    const std::lock_guard lock(mutex_);
    return *ticket;
  }();  // the device is asked without the lock
  if (t.capture != 0 || t.done == nullptr || !t.done->done()) {
    return Of(t.bucket, absl::FailedPreconditionError("is not done"));
  }
  if (origin == nullptr) origin = t.pack_begin != nullptr ? t.pack_begin.get() : t.wire_begin.get();
  const auto span = [origin](const std::shared_ptr<Event>& begin, const std::shared_ptr<Event>& end,
                             Span& to) -> absl::Status {
    if (begin == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(to.begin_ps, begin->Since(*origin));
    ASSIGN_OR_RETURN(to.end_ps, end->Since(*origin));
    return absl::OkStatus();
  };
  BucketTimes times;
  RETURN_IF_ERROR(span(t.pack_begin, t.packed, times.pack));
  RETURN_IF_ERROR(span(t.wire_begin, t.arrived, times.wire));
  RETURN_IF_ERROR(span(t.unpack_begin, t.done, times.unpack));
  return times;
}

int Executor::RankIn(int32_t bucket) const {
  return slots_[static_cast<size_t>(bucket)].lane->channel.communicator->rank();
}

std::byte* Executor::memory(int32_t bucket) const {
  const BucketLayout& layout = program_.buckets[static_cast<size_t>(bucket)];
  return layout.memory_bytes == 0 ? nullptr : base_ + layout.memory_at;
}

absl::Status Executor::health() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

absl::Status Executor::Check() {
  const std::lock_guard lock(mutex_);
  if (error_.ok()) Look();
  return error_;
}

absl::Status Executor::undefined() const {
  const std::lock_guard lock(mutex_);
  return undefined_;
}

void Executor::Abort(const std::string& why) {
  asked_ = true;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    // A launch that waits for its peers may hold it.
    for (const std::unique_ptr<Lane>& lane : lanes_) lane->channel.communicator->Abort(why);
    lock.lock();
  }
  Fail(absl::AbortedError(why));
}

absl::Status Executor::Of(int32_t bucket, const absl::Status& status) const {
  return absl::Status(status.code(),
                      absl::StrCat(Describe(program_.plan, bucket), ": ", status.message()));
}

// Tickets at the front that are over. One that did not end well stays, for Fail to count.
void Executor::Forget(bool ask) {
  while (!under_way_.empty() && under_way_.front()->idle(ask)) {
    const absl::Status ended = under_way_.front()->end();
    if (!ended.ok()) return Fail(Of(under_way_.front()->bucket, ended));
    under_way_.pop_front();
  }
}

// What an error leaves of tickets that nobody waits for any more. Their kernels end at an abort,
// and what is behind their joins then runs.
absl::Status Executor::BehindJoins(const absl::Status& error) const {
  const auto joined = std::count_if(under_way_.begin(), under_way_.end(), [](const TicketPtr& t) {
    return !t->open && !(t->idle(true) && t->end().ok());
  });
  if (joined == 0) return absl::OkStatus();
  return absl::Status(error.code(),
                      absl::StrCat(error.message(), "; what ", joined,
                                   " buckets have written that had been joined is undefined"));
}

void Executor::Fail(const absl::Status& error) {
  if (!error_.ok()) return;
  error_ = error;
  undefined_ = BehindJoins(error);
  if (!undefined_.ok() && !asked_ && options_.ends != nullptr) options_.ends(undefined_);
  // All of them before anybody waits for one: what one has on the device may be behind another's.
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    lane->channel.communicator->Abort(std::string(error.message()));
  }
  for (Slot& slot : slots_) slot.waiting = nullptr;
  changed_.notify_all();
}

void Executor::Watch() {
  const absl::Duration period =
      std::clamp(options_.timeout / 4, absl::Milliseconds(1), absl::Seconds(1));
  device_.OnlyLook();
  std::unique_lock lock(mutex_);
  while (!closing_ && error_.ok()) {
    close_.wait_for(lock, absl::ToChronoNanoseconds(period));
    Look();
  }
}

void Executor::Look() {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const absl::Status health = lane->channel.communicator->health();
    if (!health.ok()) Fail(health);
  }
  Forget(true);
  if (under_way_.empty() || SteadyNow() < under_way_.front()->deadline) return;
  const int32_t late = under_way_.front()->bucket;
  const Communicator& communicator = *slots_[static_cast<size_t>(late)].lane->channel.communicator;
  Fail(Of(late, absl::DeadlineExceededError(absl::StrCat("did not end within ",
                                                         absl::FormatDuration(options_.timeout),
                                                         " on the ", communicator.ToString()))));
}

}  // namespace bucketd::agent
