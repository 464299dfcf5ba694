#include "worker/workloads/replay_checks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/float_bits.h"
#include "common/status_macros.h"
#include "worker/parameter_init.h"

namespace tessera {
namespace {

constexpr int64_t kElementsAtOnce = 1'024;

std::string Shown(const v1::Unit& unit) { return unit.fqn().empty() ? "(root)" : unit.fqn(); }

// `flat`: in the flat parameter of the unit.
absl::Status WrongPadding(const v1::Unit& unit, const ReplayShard& shard, int64_t step,
                          int64_t flat, double got) {
  return absl::DataLossError(absl::StrCat(
      "rank ", shard.rank, ": gradients of unit ", Shown(unit), ", padding at element ", flat,
      " of the flat parameter, step ", step, ": expected 0, got ", got));
}

// Elements [begin, end) of the flat parameter are in no parameter.
absl::Status CheckPadding(const v1::Unit& unit, const ReplayShard& shard, int64_t shard_begin,
                          int64_t step, int64_t begin, int64_t end) {
  for (int64_t flat = begin; flat < end; ++flat) {
    const double got = ElementAt(shard.data, shard.dtype, flat - shard_begin);
    if (got != 0) return WrongPadding(unit, shard, step, flat, got);
  }
  return absl::OkStatus();
}

double Rounded(float value, DType dtype) {
  if (dtype == v1::BFLOAT16) return FloatFromBFloat16(BFloat16FromFloat(value));
  if (dtype == v1::FLOAT16) return FloatFromFloat16(Float16FromFloat(value));
  return static_cast<double>(value);
}

}  // namespace

absl::Status CheckGradientShard(const ReplayRule& rule, const ReplayStep& step,
                                const v1::Unit& unit, const v1::UnitLayout& layout,
                                const ReplayShard& shard) {
  const int64_t begin = shard.shard_index * layout.shard_numel();
  const int64_t end = begin + layout.shard_numel();
  std::array<int64_t, kElementsAtOnce> sums;
  int64_t checked = begin;
  for (int p = 0; p < unit.parameters_size(); ++p) {
    const v1::UnitParameter& parameter = unit.parameters(p);
    const int64_t offset = layout.parameters(p).offset();
    const int64_t to = std::min(end, offset + parameter.numel());
    const int64_t from = std::max(begin, offset);
    if (from >= to) continue;
    TESSERA_RETURN_IF_ERROR(CheckPadding(unit, shard, begin, step.step, checked, from));
    for (int64_t at = from; at < to; at += kElementsAtOnce) {
      const int64_t count = std::min(kElementsAtOnce, to - at);
      const absl::Span<int64_t> expected(sums.data(), static_cast<size_t>(count));
      ExpectReplay(rule, step, unit.fqn(), parameter, at - offset, expected);
      for (int64_t i = 0; i < count; ++i) {
        const double got = ElementAt(shard.data, shard.dtype, at - begin + i);
        const double wanted = step.scale * static_cast<double>(expected[static_cast<size_t>(i)]);
        if (got == wanted) continue;
        return absl::DataLossError(absl::StrCat("rank ", shard.rank, ": gradient of \"",
                                                parameter.fqn(), "\" in unit ", Shown(unit),
                                                ", element ", at - offset + i, ", step ", step.step,
                                                ": expected ", wanted, ", got ", got));
      }
    }
    checked = to;
  }
  return CheckPadding(unit, shard, begin, step.step, checked, end);
}

absl::Status CheckFirstValues(int64_t seed, int rank, const v1::Unit& unit,
                              const v1::UnitParameter& parameter, const TensorView& view) {
  std::array<float, kElementsAtOnce> values;
  for (int64_t at = 0; at < view.numel; at += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, view.numel - at);
    TESSERA_RETURN_IF_ERROR(
        FillParameter(static_cast<uint64_t>(seed), parameter.fqn(), parameter.init(), at,
                      absl::Span<float>(values.data(), static_cast<size_t>(count))));
    for (int64_t i = 0; i < count; ++i) {
      const double master = Rounded(values[static_cast<size_t>(i)], unit.original_dtype());
      const double expected = Rounded(static_cast<float>(master), view.dtype);
      const double got = ElementAt(view.data, view.dtype, at + i);
      if (got == expected) continue;
      return absl::DataLossError(absl::StrCat("rank ", rank, ": parameter \"", parameter.fqn(),
                                              "\" in unit ", Shown(unit), ", element ", at + i,
                                              ", unsharded in step 1: expected ", expected,
                                              " as the seed makes it, got ", got));
    }
  }
  return absl::OkStatus();
}

void ParameterBits::Add(const TensorView& view) {
  const int64_t bytes = view.numel * DTypeBytes(view.dtype);
  const char* const data = view.as<const char>();
  uint64_t state = state_;
  for (int64_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, static_cast<size_t>(std::min<int64_t>(8, bytes - at)));
    state = (state ^ word) * 0x9e3779b97f4a7c15ull;
    state ^= state >> 32;
  }
  state_ = state;
}

double ParameterBits::Take() {
  constexpr int kBits = 36;
  return static_cast<double>(std::exchange(state_, 0) >> (64 - kBits));
}

}  // namespace tessera
