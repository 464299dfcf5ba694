// What tells a process from one that had its rank before.
#ifndef TESSERA_WORKER_INCARNATION_H_
#define TESSERA_WORKER_INCARNATION_H_

#include <sys/random.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace tessera {

// 128 random bits in hex.
inline std::string NewIncarnation() {
  uint64_t bits[2] = {};
  // So few bytes always come, and never in part.
  [[maybe_unused]] const ssize_t read = getrandom(bits, sizeof(bits), 0);
  return absl::StrFormat("%016x%016x", bits[0], bits[1]);
}

}  // namespace tessera

#endif  // TESSERA_WORKER_INCARNATION_H_
