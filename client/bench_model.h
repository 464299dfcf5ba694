// A model of as many modules as are asked for, for `tessera bench plan`.
//
// Thread-safety: a pure function.
#ifndef TESSERA_CLIENT_BENCH_MODEL_H_
#define TESSERA_CLIENT_BENCH_MODEL_H_

#include <cstdint>

#include "tessera/v1/model.pb.h"

namespace tessera {

// Every block of ten modules has so many elements.
inline constexpr int64_t kBenchBlockNumel = 49'792;

// Exactly `modules` (at least 2) modules: a root, as many blocks of a transformer (class Block, ten
// modules each, in float32) as there is room for, and Linears for the rest.
v1::ModelSpec BenchModel(int64_t modules);

}  // namespace tessera

#endif  // TESSERA_CLIENT_BENCH_MODEL_H_
