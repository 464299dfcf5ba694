#include "worker/world_sums.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// Elements summed at once: bounds what a call needs beside the slot.
constexpr int64_t kLongestRun = int64_t{1} << 16;

void AddTo(std::vector<double>& sum, const void* terms, int64_t count, DType dtype, bool first) {
  // In float32 each addition rounds: a double that holds a float's value is that float.
  const bool wide = dtype == v1::FLOAT64;
  for (int64_t i = 0; i < count; ++i) {
    const double value = ElementOf(terms, dtype, i);
    if (first) {
      sum[i] = value;
    } else {
      sum[i] = wide ? sum[i] + value : static_cast<float>(sum[i]) + static_cast<float>(value);
    }
  }
}

}  // namespace

WorldSums::WorldSums(Collectives* collectives, World world, int unit, int gradient_slot,
                     int64_t slot_bytes)
    : collectives_(collectives),
      world_(world),
      unit_(unit),
      gradient_slot_(gradient_slot),
      slot_bytes_(slot_bytes) {}

int64_t WorldSums::Fit(int64_t runs, DType dtype) const {
  return std::min(kLongestRun, slot_bytes_ / (runs * DTypeBytes(dtype)));
}

absl::Status WorldSums::Sum(const FlatTensor& input, const Runs& runs, double divisor,
                            const FlatTensor& output) {
  const int64_t element = DTypeBytes(input.dtype);
  const int64_t length = Fit(runs.runs, input.dtype);
  if (length == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient buffer of ", slot_bytes_, " bytes is shorter than one element of ",
        DTypeName(input.dtype), "; give wrap.shard_align_bytes 8 or more"));
  }
  const int mine = runs.owner - runs.first;
  const bool owns = mine >= 0 && mine < runs.runs;
  const char* const from = static_cast<const char*>(input.data);
  sum_.resize(std::max<size_t>(sum_.size(), length));
  for (int64_t begin = 0; begin < output.numel; begin += length) {
    const int64_t count = std::min(length, output.numel - begin);
    const auto write = [&](char* slot) {
      for (int run = 0; run < runs.runs; ++run) {
        std::memcpy(slot + run * count * element,
                    from + ((runs.first + run) * runs.stride + begin) * element, count * element);
      }
    };
    const auto read = [&](int rank, const char* part) {
      if (owns) AddTo(sum_, part + mine * count * element, count, input.dtype, rank == 0);
    };
    TESSERA_RETURN_IF_ERROR(collectives_->ExchangeParts(unit_, gradient_slot_,
                                                        runs.runs * count * element, write, read));
    const bool wide = input.dtype == v1::FLOAT64;
    for (int64_t i = 0; owns && i < count; ++i) {
      SetElement(
          output.data, output.dtype, begin + i,
          wide ? sum_[i] / divisor : static_cast<float>(sum_[i]) / static_cast<float>(divisor));
    }
  }
  return absl::OkStatus();
}

absl::Status WorldSums::AllReduce(const FlatTensor& tensor, double divisor) {
  if (world_.world_size == 1) {
    DivideElements(tensor, divisor);
    return absl::OkStatus();
  }
  return Sum(tensor, Runs(), divisor, tensor);
}

absl::Status WorldSums::ReduceScatter(const FlatTensor& input, const FlatTensor& output) {
  if (input.numel != output.numel * world_.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reduce-scatter of ", input.numel, " elements into ", output.numel, " on each of ",
        world_.world_size, " ranks; give an input of ", output.numel * world_.world_size));
  }
  if (world_.world_size == 1) {
    CastElements(input, output);
    return absl::OkStatus();
  }
  // All owners' runs at once, unless the slot is too short for an element of each.
  const int runs = Fit(world_.world_size, input.dtype) > 0 ? world_.world_size : 1;
  for (int first = 0; first < world_.world_size; first += runs) {
    TESSERA_RETURN_IF_ERROR(
        Sum(input, {.first = first, .runs = runs, .owner = world_.rank, .stride = output.numel},
            /*divisor=*/1, output));
  }
  return absl::OkStatus();
}

}  // namespace tessera
