// Two ranks, as threads over one control file, write the same slot one after the other.
//
//   planted_race none    rank 1 waits for rank 0's lease word: no race
//   planted_race race    rank 1 does not wait: ThreadSanitizer must report it
//
// The words are the ones that workers use. The sound run shows that atomics in mapped memory and
// the futex give no false alarm; the other one that a missing lease is seen, also where the threads
// happen not to overlap: nothing orders their writes.
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/control_file.h"
#include "worker/collectives/host_sync.h"

namespace tessera {
namespace {

constexpr int kSlot = 0;
constexpr uint64_t kTenancy = 1;

HostSync::Options OptionsOf(void* control, int rank) {
  HostSync::Options options;
  options.control = control;
  options.local_world_size = 2;
  options.local_rank = rank;
  options.unsharded_slots = 1;
  return options;
}

absl::Status WaitForTenancy(HostSync& sync) {
  return sync.WaitUntil(
      [&]() -> absl::StatusOr<bool> {
        return sync.slot(0, kSlot).entered.load(std::memory_order_acquire) >= kTenancy;
      },
      [] { return std::string("the slot"); }, [] { return std::vector<int>{0}; });
}

int Run(bool race) {
  const int64_t bytes = ControlFileBytes(2, 1, 0);
  void* control = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (control == MAP_FAILED) return 3;
  int64_t slot_data = 0;
  absl::Status waited;
  {
    std::jthread rank_0([&] {
      HostSync sync(OptionsOf(control, 0));
      slot_data = 1;
      sync.Announce(sync.slot(0, kSlot).entered, kTenancy);
    });
    std::jthread rank_1([&] {
      HostSync sync(OptionsOf(control, 1));
      if (!race) waited = WaitForTenancy(sync);
      slot_data = 2;
    });
  }
  munmap(control, bytes);
  return waited.ok() && slot_data > 0 ? 0 : 3;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: planted_race none|race\n");
    return 2;
  }
  return tessera::Run(std::strcmp(argv[1], "race") == 0);
}
