// Where a rank is: set by the thread that computes, read by others at any moment, also while that
// thread is stuck or stopped in a debugger.
//
//   PositionPublisher position;
//   position.SetStep(12);
//   position.Set(v1::WORKING, unit, v1::UNSHARD);
//   {
//     const PositionPublisher::Waiting waiting(&position, unit, v1::REDUCE);
//     ...
//   }                                       // back to what it did before
//   v1::Position said = position.Read();    // in the thread that sends heartbeats
//
// A Set takes a few dozen nanoseconds: one reading of the clock and a dozen plain stores. No lock:
// a reader that meets a Set reads again.
//
// Thread-safety: one thread sets (the one that calls the Session); any may read.
#ifndef TESSERA_WORKER_POSITION_H_
#define TESSERA_WORKER_POSITION_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

class PositionPublisher {
 public:
  // Of a text, the first so many bytes are kept.
  static constexpr size_t kTextBytes = 64;

  PositionPublisher();

  void SetStep(int64_t step) { step_.store(step, std::memory_order_relaxed); }
  // Collectives issued in this generation.
  void SetSequence(uint64_t sequence) { sequence_.store(sequence, std::memory_order_relaxed); }
  // From now on. `unit`: -1: none. `what`: where it is no operation of a unit.
  void Set(v1::Activity activity, int unit, v1::Operation operation, absl::string_view what = "");

  // What is set from now on is not said, so that the place where something failed is still known
  // when that is reported; until Thaw.
  void Freeze() { frozen_ = true; }
  void Thaw() { frozen_ = false; }

  v1::Position Read() const;

  // While it lives the rank waits; then it is where it was before. Null publisher: nothing.
  class Waiting {
   public:
    Waiting(PositionPublisher* publisher, int unit, v1::Operation operation,
            absl::string_view what = "");
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    PositionPublisher* const publisher_;
    // Where it was.
    uint64_t what_ = 0;
    int64_t since_ns_ = 0;
    std::array<uint64_t, kTextBytes / 8> text_ = {};
  };

 private:
  struct Place {
    // Activity in the upper 16 bits, operation in the next 16, unit + 1 in the lower 32.
    std::atomic<uint64_t> what{0};
    std::atomic<int64_t> since_ns{0};  // of the steady clock
    std::array<std::atomic<uint64_t>, kTextBytes / 8> text{};
  };

  void Write(uint64_t what, int64_t since_ns, const std::array<uint64_t, kTextBytes / 8>& text);

  bool frozen_ = false;  // of the thread that sets
  std::atomic<int64_t> step_{0};
  std::atomic<uint64_t> sequence_{0};
  // Odd while `place_` is being written.
  std::atomic<uint64_t> version_{0};
  Place place_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_POSITION_H_
