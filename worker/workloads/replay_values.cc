#include "worker/workloads/replay_values.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/float_bits.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// Below it products with small integers could leave float16's range.
constexpr double kSmallestFactor = 1.0 / 1024;
constexpr double kLargestInFloat16 = 32'768;

// FNV-1a over the bytes of what it is given.
class Hash {
 public:
  Hash& Add(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) AddByte(static_cast<uint8_t>(value >> (8 * byte)));
    return *this;
  }
  Hash& Add(absl::string_view text) {
    for (const char c : text) AddByte(static_cast<uint8_t>(c));
    return Add(text.size());
  }
  // Spread over all bits (the finaliser of MurmurHash3).
  uint64_t Value() const {
    uint64_t hash = state_;
    hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdull;
    hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return hash ^ (hash >> 33);
  }

 private:
  void AddByte(uint8_t byte) { state_ = (state_ ^ byte) * 1099511628211ull; }
  uint64_t state_ = 14695981039346656037ull;
};

Hash HashOf(const ReplayPass& pass) {
  return Hash()
      .Add(static_cast<uint64_t>(pass.seed))
      .Add(static_cast<uint64_t>(pass.rank))
      .Add(static_cast<uint64_t>(pass.step))
      .Add(static_cast<uint64_t>(pass.micro_batch))
      .Add(static_cast<uint64_t>(pass.use));
}

// Integers up to this are all exact in the dtype, and so are sums of them over `ranks` in float32,
// in which all but float64 are summed. "Small" where there is room for more.
int64_t LargestSum(DType dtype, int64_t ranks) {
  const int64_t in_float32 = (int64_t{1} << 24) / ranks;
  const int64_t own = dtype == v1::BFLOAT16 ? 256 : dtype == v1::FLOAT16 ? 2'048 : 65'536;
  return std::min(own, in_float32);
}

// The odd integer m in value = m x 2^e; 0 where the value is not of that form with m below 2^24.
int64_t OddPart(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // [0.5, 1)
  const double scaled = std::ldexp(fraction, 24);
  if (!(value > 0) || scaled != std::floor(scaled)) return 0;
  auto odd = static_cast<int64_t>(scaled);
  while (odd % 2 == 0) odd /= 2;
  return odd;
}

// A scale that the job gives; one that moves is a power of two.
double LossScaleOf(const v1::JobSpec& resolved) {
  double scale = 1;
  return absl::SimpleAtod(resolved.mixed_precision().loss_scale(), &scale) ? scale : 1;
}

absl::Status CheckFactor(absl::string_view field, double factor) {
  if (OddPart(factor) != 0 && factor >= kSmallestFactor) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", factor, "; the workload replay takes numbers of ",
                                          kSmallestFactor, " or more that a float32 has exactly"));
}

template <typename T>
struct Plain {
  using Stored = T;
  static double Load(T value) { return static_cast<double>(value); }
  static T Store(double value) { return static_cast<T>(value); }
};
struct BFloat16 {
  using Stored = uint16_t;
  static double Load(uint16_t value) { return FloatFromBFloat16(value); }
  static uint16_t Store(double value) { return BFloat16FromFloat(static_cast<float>(value)); }
};
struct Float16 {
  using Stored = uint16_t;
  static double Load(uint16_t value) { return FloatFromFloat16(value); }
  static uint16_t Store(double value) { return Float16FromFloat(static_cast<float>(value)); }
};

template <typename Format>
void Write(const ReplayStream& stream, double factor, bool add, const TensorView& gradient) {
  auto* const values = gradient.as<typename Format::Stored>();
  for (int64_t i = 0; i < gradient.numel; ++i) {
    const double value = factor * static_cast<double>(stream.At(i));
    values[i] = Format::Store(add ? Format::Load(values[i]) + value : value);
  }
}

int64_t MostNames(const v1::Unit& unit) {
  int64_t most = 1;
  for (const v1::UnitParameter& parameter : unit.parameters()) {
    most = std::max<int64_t>(most, 1 + parameter.tied_fqns_size());
  }
  return most;
}

}  // namespace

bool ReplayRule::Contributes(const ReplayPass& pass, absl::string_view unit,
                             absl::string_view fqn) {
  if (HashOf(pass).Add("unit").Add(unit).Value() % 16 == 0) return false;
  return HashOf(pass).Add("parameter").Add(fqn).Value() % 8 != 0;
}

ReplayStream ReplayRule::Stream(const ReplayPass& pass, absl::string_view fqn) const {
  return {HashOf(pass).Add("elements").Add(fqn).Value(), largest};
}

absl::StatusOr<ReplayRule> MakeReplayRule(const v1::Unit& unit, const v1::JobSpec& resolved,
                                          int world_size, int64_t uses) {
  ReplayRule rule;
  const double given = resolved.mixed_precision().divide_factor();
  rule.factor = given == 0 ? world_size : given;
  const double scale = LossScaleOf(resolved);
  TESSERA_RETURN_IF_ERROR(CheckFactor("mixed_precision.divide_factor", rule.factor));
  TESSERA_RETURN_IF_ERROR(CheckFactor("mixed_precision.loss_scale", scale));
  int64_t sum = LargestSum(v1::FLOAT32, world_size);
  bool float16 = false;
  for (const DType dtype : {unit.param_dtype(), unit.reduce_dtype(), unit.gradient_dtype(),
                            unit.unsynced_gradient_dtype()}) {
    sum = std::min(sum, LargestSum(dtype, world_size));
    float16 = float16 || dtype == v1::FLOAT16;
  }
  // What a rank adds up in an element, and then the average: of so many integers.
  const int64_t terms = resolved.micro_batches() * uses * MostNames(unit);
  rule.largest = sum / terms / std::max<int64_t>(OddPart(rule.factor), world_size) / OddPart(scale);
  if (float16) {
    const double most = kLargestInFloat16 / rule.factor / scale / static_cast<double>(terms);
    rule.largest = std::min(rule.largest, static_cast<int64_t>(std::min(most, 65'536.0)));
  }
  if (rule.largest >= 1) return rule;
  const std::string unit_name = unit.fqn().empty() ? "the root" : absl::StrCat("unit ", unit.fqn());
  absl::string_view field = "micro_batches";
  if (rule.factor > static_cast<double>(world_size)) field = "mixed_precision.divide_factor";
  if (scale > 1) field = "mixed_precision.loss_scale";
  return InvalidField(
      field, absl::StrCat(
                 "leaves no gradients of ", unit_name, " that are exact: their sums must not pass ",
                 sum, ", and each element has ", terms, " terms of ", world_size, " ranks, times ",
                 scale, " and divided by ", rule.factor,
                 "; lower micro_batches, replay.uses or the number of workers, or take float32"));
}

void WriteReplay(const ReplayStream& stream, double factor, bool add, const TensorView& gradient) {
  switch (gradient.dtype) {
    case v1::BFLOAT16:
      return Write<BFloat16>(stream, factor, add, gradient);
    case v1::FLOAT16:
      return Write<Float16>(stream, factor, add, gradient);
    case v1::FLOAT64:
      return Write<Plain<double>>(stream, factor, add, gradient);
    default:
      return Write<Plain<float>>(stream, factor, add, gradient);
  }
}

void ExpectReplay(const ReplayRule& rule, const ReplayStep& step, absl::string_view unit,
                  const v1::UnitParameter& parameter, int64_t first, absl::Span<int64_t> sums) {
  std::fill(sums.begin(), sums.end(), 0);
  if (!parameter.requires_grad()) return;
  std::vector<absl::string_view> names = {parameter.fqn()};
  names.insert(names.end(), parameter.tied_fqns().begin(), parameter.tied_fqns().end());
  ReplayPass pass;
  pass.seed = step.seed;
  pass.step = step.step;
  for (pass.rank = 0; pass.rank < step.world_size; ++pass.rank) {
    for (pass.micro_batch = 0; pass.micro_batch < step.micro_batches; ++pass.micro_batch) {
      for (pass.use = 0; pass.use < step.uses; ++pass.use) {
        for (const absl::string_view name : names) {
          if (!ReplayRule::Contributes(pass, unit, name)) continue;
          const ReplayStream stream = rule.Stream(pass, name);
          for (size_t i = 0; i < sums.size(); ++i) {
            sums[i] += stream.At(first + static_cast<int64_t>(i));
          }
        }
      }
    }
  }
}

double ElementAt(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case v1::BFLOAT16:
      return BFloat16::Load(static_cast<const uint16_t*>(data)[index]);
    case v1::FLOAT16:
      return Float16::Load(static_cast<const uint16_t*>(data)[index]);
    case v1::FLOAT64:
      return static_cast<const double*>(data)[index];
    default:
      return static_cast<double>(static_cast<const float*>(data)[index]);
  }
}

}  // namespace tessera
