// What the bytes of a host's control file mean (its size: common/control_file.h).
//
// The file is one HostControl, then one record for each local rank, written by that rank alone and
// read by all. Every word that another rank reads is atomic; what a word announces is written
// before it (release) and read after it (acquire).
#ifndef TESSERA_WORKER_COLLECTIVES_SHM_CONTROL_H_
#define TESSERA_WORKER_COLLECTIVES_SHM_CONTROL_H_

#include <atomic>
#include <cstdint>

#include "common/control_file.h"

namespace tessera {

inline constexpr int kIssueRing = 128;
inline constexpr int kExchangeBytes = 128;
inline constexpr int kAbortMessageBytes = 1024;

// Shared by all ranks of the host. All zero at first, as a new memory file is.
struct HostControl {
  // Futex word: goes up at every announcement.
  std::atomic<uint32_t> epoch;
  // Ranks asleep on `epoch`, or about to be; never less than there are. A rank killed in its sleep
  // stays counted, which costs a system call an announcement and nothing else.
  std::atomic<uint32_t> waiters;
  // 0: none. 1: somebody is writing the fields below. 2: they are complete.
  std::atomic<uint32_t> abort_state;
  int32_t abort_rank;                      // who wrote it
  int32_t abort_blamed_rank;               // -1: nobody
  char abort_message[kAbortMessageBytes];  // ends with a zero
};
static_assert(sizeof(HostControl) <= kControlHeaderBytes);

// Counters of tenancies of one slot, which start at 1. (A resident unit's tenancies are the
// versions of its parameters: `entered` counts the rank's writes of its slice.) For an unsharded
// slot `entered` is the last tenancy whose slice the rank has written and `left` the last one it
// has released; for a gradient slot the last one whose gradients it has completed and the last one
// of which it has read its slice from every rank.
struct SlotControl {
  std::atomic<uint64_t> entered;
  std::atomic<uint64_t> left;
};
static_assert(sizeof(SlotControl) == kSlotControlBytes);

struct RankControl {
  // The last collectives that the rank has issued: number (from 1) in the upper 32 bits, kind in 4,
  // unit + 1 in 28. Entry n lies at n % kIssueRing. All ranks issue the same ones in the same
  // order; a rank that waits in its n-th compares.
  std::atomic<uint64_t> issued[kIssueRing];
  // Exchanges that the rank has contributed to, and what it contributed to the last two.
  std::atomic<uint64_t> exchanged;
  // ShmCollectives::Options::fingerprint.
  std::atomic<uint64_t> fingerprint;
  char padding[48];
  char exchange[2][kExchangeBytes];
};
static_assert(sizeof(RankControl) <= kRankControlFixedBytes);
// At kRankControlFixedBytes from the record's start: a SlotControl for each unsharded slot, then
// one for each gradient slot.

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_SHM_CONTROL_H_
