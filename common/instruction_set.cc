#include "common/instruction_set.h"

namespace tessera {
namespace {

InstructionSet Detect() {
#if defined(__x86_64__)
  // Also asks whether the operating system keeps the wide registers.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return InstructionSet::kAvx512;
  }
  if (__builtin_cpu_supports("avx2")) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

}  // namespace

InstructionSet WidestInstructionSet() {
  static const InstructionSet widest = Detect();
  return widest;
}

std::vector<InstructionSet> UsableInstructionSets() {
  std::vector<InstructionSet> sets;
  for (int set = 0; set <= static_cast<int>(WidestInstructionSet()); ++set) {
    sets.push_back(static_cast<InstructionSet>(set));
  }
  return sets;
}

const char* InstructionSetName(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline:
      return "baseline";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace tessera
