#include "gpu_agent/profiler/profiler.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

#include "gpu_agent/comm/nccl_name.h"
#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"
#include "passes/base/types.h"

namespace bucketd::agent {
namespace {

// What a ring may say.
constexpr uint64_t kMostBytes = uint64_t{1} << 46;
constexpr int kMostRanks = 1 << 20;

struct NamedType {
  absl::string_view name;
  DType type;
};
// What NCCL names; it has no name for uint8, and "Unknown" is none.
constexpr std::array<NamedType, 11> kTypes = {{{"ncclInt8", DType::kI8},
                                               {"ncclInt32", DType::kI32},
                                               {"ncclUint32", DType::kU32},
                                               {"ncclInt64", DType::kI64},
                                               {"ncclUint64", DType::kU64},
                                               {"ncclFloat16", DType::kF16},
                                               {"ncclFloat32", DType::kF32},
                                               {"ncclFloat64", DType::kF64},
                                               {"ncclBfloat16", DType::kBF16},
                                               {"ncclFloat8e4m3", DType::kF8E4M3},
                                               {"ncclFloat8e5m2", DType::kF8E5M2}}};

DType TypeOf(const char* name) {
  const auto* const at = std::find_if(kTypes.begin(), kTypes.end(), [name](const NamedType& one) {
    return name != nullptr && one.name == name;
  });
  return at == kTypes.end() ? DType::kUnspecified : at->type;
}

CollectiveKind KindOf(const char* name) {
  const absl::string_view said = name == nullptr ? "" : name;
  if (said == "AllGather") return CollectiveKind::kAllGather;
  if (said == "ReduceScatter") return CollectiveKind::kReduceScatter;
  if (said == "AllReduce") return CollectiveKind::kAllReduce;
  return CollectiveKind::kUnspecified;
}

// What a ring may say: printable, and no longer than there is room for.
std::string Text(const char* variable, size_t room) {
  const char* said = std::getenv(variable);
  std::string text = said == nullptr ? "" : said;
  text.resize(std::min(text.size(), room - 1));
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

}  // namespace

absl::StatusOr<Profiler::Settings> Profiler::FromEnvironment() {
  const char* agent = std::getenv("BUCKETD_AGENT");
  if (agent == nullptr || *agent == '\0') {
    return absl::FailedPreconditionError("BUCKETD_AGENT is not set, so nobody is told");
  }
  return Settings{agent, Text("BUCKETD_JOB", sizeof(RingHeader::job)),
                  Text("BUCKETD_LINK_CLASS", sizeof(RingLink::link_class))};
}

absl::StatusOr<std::unique_ptr<Profiler>> Profiler::Create(const Settings& settings) {
  ASSIGN_OR_RETURN(auto ring, RingWriter::Create(settings.job, settings.agent));
  RingPlan plan;
  plan.plan = kTorchsOwn;
  ring->AddPlan(plan);
  return std::unique_ptr<Profiler>(new Profiler(std::move(ring), settings.link_class));
}

Profiler::Profiler(std::unique_ptr<RingWriter> ring, std::string link_class)
    : ring_(std::move(ring)), link_class_(std::move(link_class)) {}

Profiler::Known* Profiler::Of(uint64_t communicator) {
  const uint64_t place = communicator >> 8 & 0xffff;
  if (!Is(communicator, Handle::kCommunicator) || place >= known_.size()) return nullptr;
  Known& known = known_[place];
  return known.alive && known.generation == communicator >> 32 ? &known : nullptr;
}

// Nodes with different numbers of ranks have no one class of links.
uint8_t Profiler::LinkOf(const Communicator& communicator) {
  const int nodes = communicator.nodes, ranks = communicator.ranks;
  if (ranks < 2 || ranks > kMostRanks || nodes < 1 || ranks % nodes != 0) return kNoLink;
  RingLink link;
  std::copy(link_class_.begin(), link_class_.end(), link.link_class.begin());
  link.group = communicator.id;
  link.size = static_cast<uint32_t>(ranks);
  link.ranks_per_node = static_cast<uint32_t>(ranks / nodes);
  return ring_->AddLink(link);
}

uint64_t Profiler::Begin(const Communicator& communicator) {
  const bool own = absl::StartsWith(communicator.name, kOwnCommunicators);
  const std::lock_guard lock(mutex_);
  const auto free =
      std::find_if(known_.begin(), known_.end(), [](const Known& known) { return !known.alive; });
  if (free == known_.end()) return 0;
  Known made;
  made.generation = free->generation + 1;
  made.alive = true;
  made.plan = own ? kKernelsOfBuckets : kTorchsOwn;
  made.ranks = std::clamp(communicator.ranks, 0, kMostRanks);
  // Buckets' own records are cost samples already.
  made.link = own ? kNoLink : LinkOf(communicator);
  *free = made;
  return uint64_t{made.generation} << 32 | static_cast<uint64_t>(free - known_.begin()) << 8 |
         static_cast<uint64_t>(Handle::kCommunicator);
}

void Profiler::End(uint64_t communicator) {
  const std::lock_guard lock(mutex_);
  Known* const known = Of(communicator);
  if (known != nullptr) known->alive = false;
}

// Its handle is the type: NCCL says of an all-gather itself only how many bytes it has.
uint64_t Profiler::Called(const nccl::CollApi& call) const {
  return static_cast<uint64_t>(TypeOf(call.type)) << 8 | static_cast<uint64_t>(Handle::kCall);
}

std::optional<RunRecord> Profiler::RecordOf(const Known& known, uint64_t call,
                                            const nccl::CollV4& coll) const {
  const CollectiveKind kind = KindOf(coll.name);
  const DType counted = TypeOf(coll.type);
  if (kind == CollectiveKind::kUnspecified || counted == DType::kUnspecified) return std::nullopt;
  const auto parts = static_cast<uint64_t>(ReducesWhole(kind) ? 1 : known.ranks);
  const uint64_t each = static_cast<uint64_t>(ItemSize(counted)) * parts;
  if (each == 0 || coll.count == 0 || coll.count > kMostBytes / each) return std::nullopt;
  const DType called =
      Is(call, Handle::kCall) ? static_cast<DType>(call >> 8 & 0xff) : DType::kUnspecified;
  RunRecord record;
  record.plan = known.plan;
  record.bytes = static_cast<int64_t>(coll.count * each);
  record.step = static_cast<uint32_t>(coll.sequence);
  record.bucket = static_cast<uint16_t>(kind);
  record.kind = static_cast<uint8_t>(kind);
  record.dtype =
      static_cast<uint8_t>(ItemSize(called) > 0 && !ReducesWhole(kind) ? called : counted);
  record.link = known.link;
  return record;
}

uint64_t Profiler::Launched(uint64_t communicator, uint64_t call, uint64_t launch,
                            const nccl::CollV4& coll) {
  const std::lock_guard lock(mutex_);
  Known* const known = Of(communicator);
  if (known == nullptr) {
    TellLost(1);
    return 0;
  }
  const bool shared = launch != 0 && launch == known->last_launch;
  if (shared) times_.Shares(known->last_collective);
  known->last_launch = launch;
  std::optional<RunRecord> record = RecordOf(*known, call, coll);
  if (!record.has_value()) return known->last_collective = 0;
  if (shared) record->link = kNoLink;
  known->last_collective = times_.Launched(*record, coll.channels);
  TellLost();
  return known->last_collective;
}

uint64_t Profiler::ChannelBegan(uint64_t collective, const nccl::KernelCh& channel) {
  return times_.ChannelBegan(collective, channel.channel, channel.start);
}

void Profiler::ChannelEnded(uint64_t channel, uint64_t at_ns) {
  const std::optional<RunRecord> record = times_.ChannelEnded(channel, at_ns);
  if (record.has_value()) ring_->Write(*record);
  TellLost();
}

void Profiler::TellLost(uint64_t more) {
  const uint64_t lost = times_.TakeLost() + more;
  if (lost > 0) ring_->Lose(lost);
}

}  // namespace bucketd::agent
