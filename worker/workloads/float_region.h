// One region of memory that is handed out in parts.
//
//   FloatRegion counted(nullptr);
//   Place(counted);
//   const FloatMemory memory = AllocateFloats(counted.used() * sizeof(float));
//   FloatRegion region(memory.get());
//   Place(region);
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_WORKLOADS_FLOAT_REGION_H_
#define TESSERA_WORKER_WORKLOADS_FLOAT_REGION_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace tessera {

// Hands out parts of one region, each on a cache line of its own; without a region it only counts.
class FloatRegion {
 public:
  explicit FloatRegion(float* base) : base_(base) {}
  float* Take(int64_t numel) {
    float* const part = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (numel + 15) / 16 * 16;
    return part;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

struct FreeFloats {
  void operator()(float* memory) const { std::free(memory); }
};
using FloatMemory = std::unique_ptr<float, FreeFloats>;

// `bytes` is a multiple of 64. Null: there is no memory.
inline FloatMemory AllocateFloats(size_t bytes) {
  return FloatMemory(static_cast<float*>(std::aligned_alloc(64, bytes)));
}

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_FLOAT_REGION_H_
