// What plant.py writes into a copy of the data path asks: is this the fault that the program was
// told to have?
#ifndef TESSERA_TESTS_SANITIZERS_PLANTED_H_
#define TESSERA_TESTS_SANITIZERS_PLANTED_H_

#include <cstring>

namespace tessera {

// Set before any thread starts.
inline const char* planted_fault = "none";

inline bool Planted(const char* fault) { return std::strcmp(planted_fault, fault) == 0; }

}  // namespace tessera

#endif  // TESSERA_TESTS_SANITIZERS_PLANTED_H_
