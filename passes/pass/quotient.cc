#include "passes/pass/quotient.h"

#include <algorithm>

#include "passes/base/index.h"

namespace bucketd {
QuotientDag::QuotientDag(const ItemGraph& items, absl::Span<const Step> order) : items_(items) {
  const size_t size = Index(items.size());
  rep_.resize(size);
  for (size_t i = 0; i < size; ++i) rep_[i] = static_cast<int32_t>(i);
  at_.assign(size, -1);
  order_.reserve(order.size());
  for (const Step& step : order) {
    at_[Index(items.item(step))] = static_cast<int32_t>(order_.size());
    order_.push_back(items.item(step));
  }
  mark_.assign(size, 0);
  trial_.assign(size, 0);
  member_.assign(size, 0);
}

template <typename F>
bool QuotientDag::AnyBefore(int32_t rep, F f) {
  const auto any = [&](int32_t item) {
    const absl::Span<const int32_t> before = items_.before(item);
    work_ += static_cast<int64_t>(before.size()) + 1;
    for (const int32_t x : before) {
      if (Rep(x) != rep && f(Rep(x))) return true;
    }
    return false;
  };
  if (rep < items_.size()) return any(rep);
  const absl::Span<const int32_t> merged = bucket_items_.of(rep - items_.size());
  return std::any_of(merged.begin(), merged.end(), any);
}

void QuotientDag::ScanTo(int32_t position) {
  for (int32_t p = scanned_ + 1; p <= position; ++p) {
    const int32_t rep = order_[Index(p)];
    if (rep >= 0 && AnyBefore(rep, [&](int32_t x) { return Marked(x); })) {
      mark_[Index(rep)] = epoch_;
    }
  }
  scanned_ = std::max(scanned_, position);
}

bool QuotientDag::Joins(int32_t start_item) {
  promoted_.clear();
  ++work_;
  if (members_.empty()) return true;
  const int32_t position = at_[Index(start_item)];
  if (position <= scanned_) return JoinsEarlier(start_item, position);
  ScanTo(position);
  return !Marked(start_item);
}

// Stands before what was scanned: what it reaches there is not marked yet, and a member may be
// among it.
bool QuotientDag::JoinsEarlier(int32_t start, int32_t position) {
  if (Marked(start)) return false;
  ++trial_epoch_;
  const auto reached = [&](int32_t x) { return trial_[Index(x)] == trial_epoch_; };
  trial_[Index(start)] = trial_epoch_;
  promoted_.push_back(start);
  for (int32_t p = position + 1; p <= scanned_; ++p) {
    const int32_t rep = order_[Index(p)];
    if (rep < 0 || !AnyBefore(rep, reached)) continue;
    if (member_[Index(rep)] == epoch_) return false;
    trial_[Index(rep)] = trial_epoch_;
    promoted_.push_back(rep);
  }
  return true;
}

void QuotientDag::Add(int32_t start_item, int32_t wait_item) {
  const int32_t position = at_[Index(start_item)];
  if (members_.empty()) {
    first_ = last_ = scanned_ = position;
  } else {
    first_ = std::min(first_, position);
    last_ = std::max(last_, position);
  }
  mark_[Index(start_item)] = member_[Index(start_item)] = epoch_;
  for (const int32_t rep : promoted_) mark_[Index(rep)] = epoch_;
  promoted_.clear();
  members_.push_back(start_item);
  member_waits_.push_back(wait_item);
}

void QuotientDag::Close(bool merge) {
  if (merge && members_.size() > 1) Merge();
  members_.clear();
  member_waits_.clear();
  promoted_.clear();
  ++epoch_;
}

// Between the first and the last member: what no member reaches, the bucket, what one does.
void QuotientDag::Merge() {
  const auto bucket = static_cast<int32_t>(rep_.size());
  for (const std::vector<int32_t>* list : {&members_, &member_waits_}) {
    for (const int32_t item : *list) {
      rep_[Index(item)] = bucket;
      order_[Index(at_[Index(item)])] = -1;
      bucket_items_.all.push_back(item);
    }
  }
  bucket_items_.Close();
  rep_.push_back(bucket);
  at_.push_back(-1);
  mark_.push_back(epoch_);
  trial_.push_back(0);
  member_.push_back(0);

  std::vector<int32_t> before, after;
  for (int32_t p = first_; p <= last_; ++p) {
    const int32_t rep = order_[Index(p)];
    if (rep >= 0) (Marked(rep) ? after : before).push_back(rep);
    order_[Index(p)] = -1;
    ++work_;
  }
  int32_t p = first_;
  const auto place = [&](int32_t rep) {
    order_[Index(p)] = rep;
    at_[Index(rep)] = p++;
  };
  for (const int32_t rep : before) place(rep);
  place(bucket);
  for (const int32_t rep : after) place(rep);
}

}  // namespace bucketd
