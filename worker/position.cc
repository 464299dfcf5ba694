#include "worker/position.h"

#include <algorithm>
#include <cstring>

#include "absl/time/time.h"
#include "common/clock.h"

namespace tessera {
namespace {

using Text = std::array<uint64_t, PositionPublisher::kTextBytes / 8>;

int64_t NowNs() { return absl::ToUnixNanos(Clock::Real()->Now()); }

uint64_t Pack(v1::Activity activity, int unit, v1::Operation operation) {
  return (static_cast<uint64_t>(activity) << 48) | (static_cast<uint64_t>(operation) << 32) |
         static_cast<uint32_t>(unit + 1);
}

v1::Activity ActivityOf(uint64_t packed) { return static_cast<v1::Activity>(packed >> 48); }
v1::Operation OperationOf(uint64_t packed) {
  return static_cast<v1::Operation>((packed >> 32) & 0xffff);
}
int UnitOf(uint64_t packed) { return static_cast<int>(static_cast<uint32_t>(packed)) - 1; }

Text ToText(absl::string_view what) {
  Text text = {};
  if (!what.empty()) std::memcpy(text.data(), what.data(), std::min(what.size(), sizeof(text)));
  return text;
}

}  // namespace

PositionPublisher::PositionPublisher() { Set(v1::COMPUTING, -1, v1::OPERATION_UNSPECIFIED); }

// Every store of the place is a release and every load an acquire, so a reader that sees any of a
// Set sees its odd version too, and one that reads the same even version before and after has read
// the whole of one Set.
void PositionPublisher::Write(uint64_t what, int64_t since_ns, const Text& text) {
  const uint64_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  place_.what.store(what, std::memory_order_release);
  place_.since_ns.store(since_ns, std::memory_order_release);
  for (size_t i = 0; i < text.size(); ++i) place_.text[i].store(text[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

void PositionPublisher::Set(v1::Activity activity, int unit, v1::Operation operation,
                            absl::string_view what) {
  if (frozen_) return;
  Write(Pack(activity, unit, operation), NowNs(), ToText(what));
}

v1::Position PositionPublisher::Read() const {
  uint64_t what = 0;
  int64_t since_ns = 0;
  Text text = {};
  for (;;) {
    const uint64_t version = version_.load(std::memory_order_acquire);
    what = place_.what.load(std::memory_order_acquire);
    since_ns = place_.since_ns.load(std::memory_order_acquire);
    for (size_t i = 0; i < text.size(); ++i)
      text[i] = place_.text[i].load(std::memory_order_acquire);
    if (version % 2 == 0 && version_.load(std::memory_order_relaxed) == version) break;
  }
  v1::Position position;
  position.set_step(step_.load(std::memory_order_relaxed));
  position.set_activity(ActivityOf(what));
  position.set_unit(UnitOf(what));
  position.set_operation(OperationOf(what));
  position.set_sequence(static_cast<int64_t>(sequence_.load(std::memory_order_relaxed)));
  const char* begin = reinterpret_cast<const char*>(text.data());
  position.set_what(std::string(begin, strnlen(begin, sizeof(text))));
  const int64_t ns = std::max<int64_t>(0, NowNs() - since_ns);
  position.mutable_time()->set_seconds(ns / 1'000'000'000);
  position.mutable_time()->set_nanos(static_cast<int32_t>(ns % 1'000'000'000));
  return position;
}

PositionPublisher::Waiting::Waiting(PositionPublisher* publisher, int unit, v1::Operation operation,
                                    absl::string_view what)
    : publisher_(publisher) {
  if (publisher_ == nullptr) return;
  const Place& place = publisher_->place_;
  what_ = place.what.load(std::memory_order_relaxed);
  since_ns_ = place.since_ns.load(std::memory_order_relaxed);
  for (size_t i = 0; i < text_.size(); ++i)
    text_[i] = place.text[i].load(std::memory_order_relaxed);
  publisher_->Set(v1::WAITING, unit, operation, what);
}

PositionPublisher::Waiting::~Waiting() {
  if (publisher_ == nullptr || publisher_->frozen_) return;
  publisher_->Write(what_, since_ns_, text_);
}

}  // namespace tessera
