// The size of a host's control file: what its ranks tell each other through shared memory. The
// layout needs the size, the worker (worker/collectives/shm_control.h) gives the bytes their
// meaning.
#ifndef TESSERA_COMMON_CONTROL_FILE_H_
#define TESSERA_COMMON_CONTROL_FILE_H_

#include <cstdint>

namespace tessera {

inline constexpr int64_t kPageBytes = 4096;

inline constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A page for the host, then each rank's own record, written by that rank alone: 3,072 fixed bytes
// and 16 for each slot.
inline constexpr int64_t kControlHeaderBytes = kPageBytes;
inline constexpr int64_t kRankControlFixedBytes = 3072;
inline constexpr int64_t kSlotControlBytes = 16;

inline constexpr int64_t RankControlBytes(int64_t unsharded_slots, int64_t gradient_slots) {
  return RoundUp(kRankControlFixedBytes + kSlotControlBytes * (unsharded_slots + gradient_slots),
                 kPageBytes);
}

inline constexpr int64_t ControlFileBytes(int64_t local_world_size, int64_t unsharded_slots,
                                          int64_t gradient_slots) {
  return kControlHeaderBytes + local_world_size * RankControlBytes(unsharded_slots, gradient_slots);
}

// The rank file's record: a page for the step record, the votes and the undo flag, then 8 bytes of
// step tag for each unit.
inline constexpr int64_t StepRecordBytes(int64_t units) {
  return RoundUp(kPageBytes + 8 * units, 64);
}

}  // namespace tessera

#endif  // TESSERA_COMMON_CONTROL_FILE_H_
