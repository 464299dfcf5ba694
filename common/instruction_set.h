// One binary, several instruction sets: a loop is compiled for each of them and run in the widest
// that the processor has. The results are the same bits in all, as long as the loop's own
// arithmetic fixes them (no fused multiply-add: the build says -ffp-contract=off; no sums whose
// order a compiler may choose).
//
//   struct Halve {
//     TESSERA_WIDE_LOOP void operator()(const float* in, int64_t numel, float* out) const {
//       for (int64_t i = 0; i < numel; ++i) out[i] = in[i] / 2;
//     }
//   };
//   RunWide(Halve(), in, numel, out);
//
// What the loop calls has to be inlined into it: functions that are not remain in the baseline.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COMMON_INSTRUCTION_SET_H_
#define TESSERA_COMMON_INSTRUCTION_SET_H_

#include <cstdint>
#include <vector>

// Of a function that RunWide is to compile for every instruction set.
#define TESSERA_WIDE_LOOP [[gnu::always_inline]] inline

namespace tessera {

enum class InstructionSet {
  kBaseline,  // what every processor of the architecture has; on x86-64 SSE2
  kAvx2,
  kAvx512,  // F, BW, DQ and VL
};

// The widest that this processor and its operating system can run. The same for the whole life of
// the process.
InstructionSet WidestInstructionSet();

// All up to WidestInstructionSet, for tests.
std::vector<InstructionSet> UsableInstructionSets();

// "baseline", "avx2" or "avx512".
const char* InstructionSetName(InstructionSet set);

namespace internal_instruction_set {

#if defined(__x86_64__)
template <typename Loop, typename... Args>
[[gnu::target("avx2")]] void RunAvx2(const Loop& loop, Args... args) {
  loop(args...);
}
template <typename Loop, typename... Args>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void RunAvx512(const Loop& loop,
                                                                     Args... args) {
  loop(args...);
}
#endif

}  // namespace internal_instruction_set

// Runs the loop in `set`, which must be usable.
template <typename Loop, typename... Args>
void RunIn(InstructionSet set, const Loop& loop, Args... args) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) {
    return internal_instruction_set::RunAvx512(loop, args...);
  }
  if (set == InstructionSet::kAvx2) return internal_instruction_set::RunAvx2(loop, args...);
#endif
  loop(args...);
}

template <typename Loop, typename... Args>
void RunWide(const Loop& loop, Args... args) {
  RunIn(WidestInstructionSet(), loop, args...);
}

}  // namespace tessera

#endif  // TESSERA_COMMON_INSTRUCTION_SET_H_
