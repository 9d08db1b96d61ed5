#include "server/jobs/machine/waiting_ranks.h"

#include <algorithm>

namespace bucketd {

void Presented::GiveUpFetch() {
  if (fetch != nullptr) fetch->GiveUp();
  inline_sender = 0;
}

void WaitingRanks::Add(CallId id, Scope& scope, Presented& presented, const JobCall& job,
                       SteadyTime answer_by) {
  for (const uint32_t rank : job.ranks) {
    LiveRank& live = live_[rank];
    if (live.calls++ != 0) continue;
    live.signature = presented.index;
    ++presented.live;
    ++context_.waiting_ranks;
  }
  if (presented.calls.empty()) ++live_signatures_;
  presented.calls.insert(id);
  deadlines_.emplace(answer_by, id);
  context_.call_places.Add(job.share, id);
  context_.calls.emplace(
      id, WaitingCall{&scope, presented.index, RankList(job.ranks.begin(), job.ranks.end()),
                      answer_by, job.share});
}

void WaitingRanks::Take(CallId id) {
  const auto found = context_.calls.find(id);
  const WaitingCall& call = found->second;
  Presented& presented = presented_[call.signature];
  for (const uint32_t rank : call.ranks) {
    const auto live = live_.find(rank);
    if (--live->second.calls != 0) continue;
    live_.erase(live);
    --presented.live;
    --context_.waiting_ranks;
  }
  presented.calls.erase(id);
  if (presented.calls.empty()) --live_signatures_;
  deadlines_.erase({call.answer_by, id});
  context_.call_places.Remove(call.share, id);
  context_.calls.erase(found);
}

void WaitingRanks::Clear() {
  live_ = {};
  presented_.clear();
  presented_.shrink_to_fit();
  by_signature_ = {};
  live_signatures_ = 0;
}

Presented& WaitingRanks::Of(const Digest& signature_id, const Digest& graph, bool fresh) {
  const auto [at, is_new] = by_signature_.emplace(signature_id, presented_.size());
  if (is_new) {
    Presented& made = presented_.emplace_back();
    made.index = at->second;
    made.signature_id = signature_id;
    made.graph = graph;
    made.fresh = fresh;
  }
  return presented_[at->second];
}

const Presented* WaitingRanks::Of(uint32_t rank) const {
  const auto found = live_.find(rank);
  return found == live_.end() ? nullptr : &presented_[found->second.signature];
}

Presented& WaitingRanks::any() {
  return presented_[context_.calls.find(first_due())->second.signature];
}

std::vector<uint32_t> WaitingRanks::Present() const {
  std::vector<uint32_t> present;
  for (const auto& [rank, live] : live_) present.push_back(rank);
  std::sort(present.begin(), present.end());
  return present;
}

std::vector<uint32_t> WaitingRanks::Missing(uint32_t size) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (!has(rank)) missing.push_back(rank);
  }
  return missing;
}

std::vector<RankGroup> WaitingRanks::Groups() const {
  std::vector<std::pair<size_t, uint32_t>> by_signature;
  for (const auto& [rank, live] : live_) by_signature.emplace_back(live.signature, rank);
  for (const Presented& presented : presented_) {
    for (const uint32_t rank : presented.asked) {
      if (!has(rank)) by_signature.emplace_back(presented.index, rank);
    }
  }
  std::sort(by_signature.begin(), by_signature.end());
  std::vector<RankGroup> groups;
  for (const auto& [index, rank] : by_signature) {
    const Presented* presented = &presented_[index];
    if (groups.empty() || groups.back().presented != presented) groups.push_back({presented, {}});
    groups.back().ranks.push_back(rank);
  }
  std::sort(groups.begin(), groups.end(), [](const RankGroup& a, const RankGroup& b) {
    return std::make_pair(a.ranks.size(), a.ranks[0]) < std::make_pair(b.ranks.size(), b.ranks[0]);
  });
  return groups;
}

}  // namespace bucketd
