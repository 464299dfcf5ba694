#include "worker/world_sums.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// Elements summed at once: bounds what a call needs beside the slot.
constexpr int64_t kLongestRun = int64_t{1} << 16;

void AddTo(std::vector<double>& sum, const FlatTensor& term, bool first) {
  // In float32 each addition rounds: a double that holds a float's value is that float.
  const bool wide = term.dtype == v1::FLOAT64;
  for (int64_t i = 0; i < term.numel; ++i) {
    const double value = ElementOf(term.data, term.dtype, i);
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

absl::Status WorldSums::Sum(const FlatTensor& input, int64_t stride, int first_owner, int runs,
                            const FlatTensor& output, int owner) {
  const int64_t element = DTypeBytes(input.dtype);
  const int64_t length = Fit(runs, input.dtype);
  if (length == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient buffer of ", slot_bytes_, " bytes is shorter than one element of ",
        DTypeName(input.dtype), "; give wrap.shard_align_bytes 8 or more"));
  }
  const bool mine = owner >= first_owner && owner < first_owner + runs;
  char* from = static_cast<char*>(input.data);
  for (int64_t begin = 0; begin < output.numel; begin += length) {
    const int64_t count = std::min(length, output.numel - begin);
    const auto write = [&](char* slot) {
      for (int run = 0; run < runs; ++run) {
        std::memcpy(slot + run * count * element,
                    from + ((first_owner + run) * stride + begin) * element, count * element);
      }
    };
    const auto read = [&](int rank, const char* part) {
      if (!mine) return;
      char* term = const_cast<char*>(part) + (owner - first_owner) * count * element;
      AddTo(sum_, {term, count, input.dtype}, /*first=*/rank == 0);
    };
    sum_.resize(std::max<size_t>(sum_.size(), count));
    TESSERA_RETURN_IF_ERROR(collectives_->ExchangeParts(unit_, gradient_slot_,
                                                        runs * count * element, write, read));
    for (int64_t i = 0; mine && i < count; ++i)
      SetElement(output.data, output.dtype, begin + i, sum_[i]);
  }
  return absl::OkStatus();
}

absl::Status WorldSums::AllReduce(const FlatTensor& tensor) {
  if (world_.world_size == 1) return absl::OkStatus();
  return Sum(tensor, /*stride=*/0, /*first_owner=*/0, /*runs=*/1, tensor, /*owner=*/0);
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
    TESSERA_RETURN_IF_ERROR(Sum(input, output.numel, first, runs, output, world_.rank));
  }
  return absl::OkStatus();
}

}  // namespace tessera
