// A rank's slices of the units that are sealed while the model is built, until they go into its
// shards. Each in pages of its own, which go back to the system at once.
//
//   TESSERA_RETURN_IF_ERROR(kept.Keep(unit, layout, rank, [&](int parameter, int64_t first,
//                                                             absl::Span<float> out) { ... }));
//   TESSERA_RETURN_IF_ERROR(kept.MoveTo(unit, layout, shard_index, shard));
//
// Thread-safe.
#ifndef TESSERA_WORKER_KEPT_SHARDS_H_
#define TESSERA_WORKER_KEPT_SHARDS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/mutex.h"
#include "tessera/v1/plan.pb.h"
#include "worker/shard_span.h"

namespace tessera {

// Rounds to a dtype and back to float32.
void RoundTo(DType dtype, absl::Span<float> values);

class KeptShards {
 public:
  // Fills `out` with the elements from `first` on of the unit's parameter `parameter` (an index).
  using Fill = absl::FunctionRef<absl::Status(int parameter, int64_t first, absl::Span<float> out)>;

  bool Has(const std::string& unit) const;
  // Keeps the slice of `rank`, rounded to the unit's original dtype; padding is 0. Shards repeat
  // over replicas: the slice is number rank modulo the number of shards. RESOURCE_EXHAUSTED: no
  // memory is left; or as `fill`.
  absl::Status Keep(const v1::Unit& unit, const v1::UnitLayout& layout, int rank, Fill fill);
  void Round(DType dtype);
  // Copies the slice to `shard`, in its dtype, and frees it. INTERNAL: it is not kept, or is
  // another slice.
  absl::Status MoveTo(const v1::Unit& unit, const v1::UnitLayout& layout, int shard_index,
                      const ShardSpan& shard);
  int64_t bytes() const;

 private:
  class Pages {
   public:
    Pages(float* data, int64_t numel) : data_(data), numel_(numel) {}
    Pages(Pages&& other) noexcept;
    Pages& operator=(Pages&&) = delete;
    ~Pages();
    absl::Span<float> values() const { return {data_, static_cast<size_t>(numel_)}; }

   private:
    float* data_;
    int64_t numel_;
  };
  struct Kept {
    int shard_index;
    Pages pages;
  };

  mutable Mutex mutex_;
  std::map<std::string, Kept> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEPT_SHARDS_H_
