#include "worker/kept_shards.h"

#include <sys/mman.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/float_bits.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {

void RoundTo(DType dtype, absl::Span<float> values) {
  if (dtype == v1::BFLOAT16) {
    for (float& value : values) value = FloatFromBFloat16(BFloat16FromFloat(value));
  } else if (dtype == v1::FLOAT16) {
    for (float& value : values) value = FloatFromFloat16(Float16FromFloat(value));
  }
}

KeptShards::Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), numel_(std::exchange(other.numel_, 0)) {}

KeptShards::Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, numel_ * sizeof(float));
}

bool KeptShards::Has(const std::string& unit) const {
  MutexLock lock(mutex_);
  return kept_.count(unit) > 0;
}

absl::Status KeptShards::Keep(const v1::Unit& unit, const v1::UnitLayout& layout, int rank,
                              Fill fill) {
  const int64_t numel = layout.shard_numel();
  if (numel == 0) return absl::OkStatus();
  void* data = mmap(nullptr, numel * sizeof(float), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory is left for the ",
                                                     numel * sizeof(float), " bytes of unit \"",
                                                     unit.fqn(), "\" that this rank keeps"));
  }
  const int64_t shards = layout.padded_numel() / numel;
  Kept kept{static_cast<int>(rank % shards), Pages(static_cast<float*>(data), numel)};
  const int64_t begin = kept.shard_index * numel;
  const absl::Span<float> values = kept.pages.values();
  for (int i = 0; i < unit.parameters_size(); ++i) {
    const int64_t offset = layout.parameters(i).offset();
    const int64_t from = std::max(begin, offset);
    const int64_t to = std::min(begin + numel, offset + unit.parameters(i).numel());
    if (from >= to) continue;
    TESSERA_RETURN_IF_ERROR(fill(i, from - offset, values.subspan(from - begin, to - from)));
  }
  RoundTo(unit.original_dtype(), values);
  MutexLock lock(mutex_);
  kept_.emplace(unit.fqn(), std::move(kept));
  return absl::OkStatus();
}

void KeptShards::Round(DType dtype) {
  MutexLock lock(mutex_);
  for (auto& [fqn, kept] : kept_) RoundTo(dtype, kept.pages.values());
}

absl::Status KeptShards::MoveTo(const v1::Unit& unit, const v1::UnitLayout& layout, int shard_index,
                                const ShardSpan& shard) {
  if (layout.shard_numel() == 0) return absl::OkStatus();
  std::optional<Kept> kept;
  {
    MutexLock lock(mutex_);
    const auto found = kept_.find(unit.fqn());
    if (found != kept_.end()) {
      kept.emplace(std::move(found->second));
      kept_.erase(found);
    }
  }
  if (!kept.has_value() || kept->shard_index != shard_index ||
      static_cast<int64_t>(kept->pages.values().size()) != shard.numel) {
    return absl::InternalError(absl::StrCat("unit \"", unit.fqn(),
                                            "\" was sealed otherwise than the plan has it now; "
                                            "coordinator and worker are of different builds"));
  }
  CastElements(kept->pages.values().data(), v1::FLOAT32, shard.numel, shard.dtype, shard.data);
  return absl::OkStatus();
}

int64_t KeptShards::bytes() const {
  MutexLock lock(mutex_);
  int64_t numel = 0;
  for (const auto& [fqn, kept] : kept_) numel += static_cast<int64_t>(kept.pages.values().size());
  return numel * static_cast<int64_t>(sizeof(float));
}

}  // namespace tessera
