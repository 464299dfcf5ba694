// How every message begins that says that ranks do not hold the same or do not do the same. Members
// leave with a code and a text alone, so this is how the coordinator knows which kind of incident
// it was.
#ifndef TESSERA_COMMON_DISAGREEMENT_H_
#define TESSERA_COMMON_DISAGREEMENT_H_

namespace tessera {

inline constexpr char kRanksDisagree[] = "ranks disagree on ";

}  // namespace tessera

#endif  // TESSERA_COMMON_DISAGREEMENT_H_
