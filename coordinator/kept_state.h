// How the state of a generation is written in the state store: words in the state of its hosts.
#ifndef TESSERA_COORDINATOR_KEPT_STATE_H_
#define TESSERA_COORDINATOR_KEPT_STATE_H_

namespace tessera {

inline constexpr char kLive[] = "LIVE";        // it lives; else it is over and the next is awaited
inline constexpr char kFresh[] = "FRESH";      // not Recovery.in_place
inline constexpr char kGrowing[] = "GROWING";  // Recovery.growing

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_KEPT_STATE_H_
