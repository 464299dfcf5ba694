#include "worker/parameter_init.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/philox.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

constexpr double kTwoToMinus32 = 1.0 / 4294967296.0;

// Natural logarithm of a normal number in (0, 1], within 1e-15. Not std::log, whose last bit
// differs between processors.
double Log(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  // Cut at sqrt(1/2), so that the mantissa lies in [sqrt(1/2), sqrt(2)) and the series below
  // converges fast.
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int64_t exponent = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  const double mantissa = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  const double s = (mantissa - 1) / (mantissa + 1);
  const double t = s * s;
  // 2 atanh(s), |s| < 0.172.
  const double series =
      1 +
      t * (1.0 / 3 +
           t * (1.0 / 5 +
                t * (1.0 / 7 +
                     t * (1.0 / 9 + t * (1.0 / 11 + t * (1.0 / 13 + t * (1.0 / 15 + t / 17)))))));
  return static_cast<double>(exponent) * kLn2 + 2 * s * series;
}

struct Point {
  double x;
  double y;
};

// The point of the unit circle at `turn` of a whole turn, 0 <= turn < 1, within 1e-13.
Point OnCircle(double turn) {
  constexpr double kHalfPi = 1.57079632679489661923;
  const double quarters = turn * 4;
  // 0..4, of which 4 is 0 again. NOLINTNEXTLINE(bugprone-incorrect-roundings): it isn't negative.
  const int quadrant = static_cast<int>(quarters + 0.5);
  const double a = (quarters - quadrant) * kHalfPi;  // within +-pi/4
  const double t = a * a;
  const double sine =
      a * (1 - t / 6 * (1 - t / 20 * (1 - t / 42 * (1 - t / 72 * (1 - t / 110 * (1 - t / 156))))));
  const double cosine =
      1 -
      t / 2 *
          (1 - t / 12 * (1 - t / 30 * (1 - t / 56 * (1 - t / 90 * (1 - t / 132 * (1 - t / 182))))));
  const bool swap = (quadrant & 1) != 0;
  const double x = swap ? sine : cosine;
  const double y = swap ? cosine : sine;
  const bool negate_x = quadrant == 1 || quadrant == 2;
  const bool negate_y = quadrant == 2 || quadrant == 3;
  return {negate_x ? -x : x, negate_y ? -y : y};
}

// Four values from the four words of a block.
struct Normal {
  double std;
  std::array<float, 4> operator()(const PhiloxBlock& words) const {
    std::array<float, 4> values;
    for (int pair = 0; pair < 2; ++pair) {
      const double u = (words[2 * pair] + 1.0) * kTwoToMinus32;  // (0, 1]
      const double radius = std * std::sqrt(-2 * Log(u));
      const Point point = OnCircle(words[2 * pair + 1] * kTwoToMinus32);
      values[2 * pair] = static_cast<float>(radius * point.x);
      values[2 * pair + 1] = static_cast<float>(radius * point.y);
    }
    return values;
  }
};

struct Uniform {
  double low;
  double high;
  std::array<float, 4> operator()(const PhiloxBlock& words) const {
    std::array<float, 4> values;
    for (int i = 0; i < 4; ++i) {
      const double value = low + (high - low) * (words[i] * kTwoToMinus32);
      // Rounding to float32 may reach `high`, which is excluded.
      const float rounded = static_cast<float>(value);
      values[i] = rounded < high ? rounded
                                 : std::nextafter(rounded, -std::numeric_limits<float>::infinity());
    }
    return values;
  }
};

// values[k] = element first + k, where block b makes elements 4b to 4b+3.
template <typename Rule>
void FillRandom(const RandomStream& stream, const Rule& rule, int64_t first,
                absl::Span<float> values) {
  const int64_t count = static_cast<int64_t>(values.size());
  int64_t done = 0;
  while (done < count) {
    const int64_t element = first + done;
    const std::array<float, 4> four = rule(stream.Block(static_cast<uint64_t>(element / 4)));
    const int64_t lane = element % 4;
    const int64_t take = std::min<int64_t>(4 - lane, count - done);
    std::copy_n(four.begin() + lane, take, values.begin() + done);
    done += take;
  }
}

absl::Status CheckLayout(const v1::Unit& unit, const v1::UnitLayout& layout, int shard_index,
                         size_t shard_size) {
  if (layout.fqn() != unit.fqn() || layout.parameters_size() != unit.parameters_size()) {
    return InvalidField(unit.fqn(),
                        absl::StrCat("the layout given is of unit '", layout.fqn(), "' with ",
                                     layout.parameters_size(), " parameters; the unit has ",
                                     unit.parameters_size()));
  }
  if (static_cast<int64_t>(shard_size) != layout.shard_numel()) {
    return InvalidField(unit.fqn(),
                        absl::StrCat("a shard has ", layout.shard_numel(), " elements; memory for ",
                                     shard_size, " was given"));
  }
  if (shard_index < 0) return InvalidField(unit.fqn(), absl::StrCat("shard ", shard_index));
  int64_t end = 0;
  for (int i = 0; i < unit.parameters_size(); ++i) {
    if (layout.parameters(i).fqn() != unit.parameters(i).fqn() ||
        layout.parameters(i).offset() < end) {
      return InvalidField(unit.parameters(i).fqn(), "is not at this place in the unit's layout");
    }
    end = layout.parameters(i).offset() + unit.parameters(i).numel();
  }
  if (end > layout.padded_numel()) {
    return InvalidField(unit.fqn(), "its parameters end beyond padded_numel");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillParameter(uint64_t seed, absl::string_view fqn, const v1::Init& init,
                           int64_t first, absl::Span<float> values) {
  const RandomStream stream(seed, StreamId(fqn));
  const std::string& kind = init.kind();
  if (kind.empty() || kind == "normal") {
    const double std = init.has_std() ? init.std() : 0.02;
    if (!std::isfinite(std) || std < 0) {
      return InvalidField(fqn, absl::StrCat("init std is ", std, "; give 0 or more"));
    }
    FillRandom(stream, Normal{std}, first, values);
  } else if (kind == "uniform") {
    const double low = init.has_low() ? init.low() : 0;
    const double high = init.has_high() ? init.high() : 1;
    if (!std::isfinite(low) || !std::isfinite(high) || low >= high) {
      return InvalidField(
          fqn, absl::StrCat("init from ", low, " to ", high, " is no interval; give low < high"));
    }
    FillRandom(stream, Uniform{low, high}, first, values);
  } else if (kind == "zeros" || kind == "ones") {
    std::fill(values.begin(), values.end(), kind == "ones" ? 1.0f : 0.0f);
  } else {
    return InvalidField(
        fqn, absl::StrCat("init kind '", kind, "' is unknown; use normal, uniform, zeros or ones"));
  }
  return absl::OkStatus();
}

absl::Status FillShard(const v1::Unit& unit, const v1::UnitLayout& layout, int shard_index,
                       uint64_t seed, const ShardSpan& shard) {
  constexpr int64_t kBlock = 4096;
  TESSERA_RETURN_IF_ERROR(CheckLayout(unit, layout, shard_index, shard.numel));
  const int64_t element = DTypeBytes(shard.dtype);
  const int64_t begin = shard_index * layout.shard_numel();
  const int64_t end = begin + layout.shard_numel();
  std::vector<float> block(std::min(kBlock, shard.numel));
  // Zero is the same bits in every dtype.
  if (shard.numel > 0) std::memset(shard.data, 0, shard.bytes());
  for (int i = 0; i < unit.parameters_size(); ++i) {
    const v1::UnitParameter& parameter = unit.parameters(i);
    const int64_t offset = layout.parameters(i).offset();
    const int64_t to = std::min(end, offset + parameter.numel());
    for (int64_t from = std::max(begin, offset); from < to; from += kBlock) {
      const absl::Span<float> values =
          absl::MakeSpan(block).subspan(0, std::min(kBlock, to - from));
      TESSERA_RETURN_IF_ERROR(
          FillParameter(seed, parameter.fqn(), parameter.init(), from - offset, values));
      CastElements(values.data(), v1::FLOAT32, static_cast<int64_t>(values.size()), shard.dtype,
                   shard.data + (from - begin) * element);
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
