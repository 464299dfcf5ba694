// Where sums over hosts without GPUs arrive: a part of each rank's staging. The layout needs the
// size, the worker (worker/collectives/host_links.h) gives the bytes their meaning.
#ifndef TESSERA_COMMON_HOST_STAGING_H_
#define TESSERA_COMMON_HOST_STAGING_H_

#include <cstdint>

namespace tessera {

// Pieces of two parts of a sum: while one is added the next arrives.
inline constexpr int64_t kHostPieceBytes = 512 * 1024;

inline constexpr int64_t HostLinkStagingBytes(int64_t hosts) {
  return hosts > 1 ? 2 * kHostPieceBytes : 0;
}

}  // namespace tessera

#endif  // TESSERA_COMMON_HOST_STAGING_H_
