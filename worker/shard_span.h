// The elements of a unit that one rank owns, in memory that somebody else owns: a master shard or a
// reduced gradient shard.
#ifndef TESSERA_WORKER_SHARD_SPAN_H_
#define TESSERA_WORKER_SHARD_SPAN_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/dtype.h"

namespace tessera {

struct ShardSpan {
  char* data = nullptr;
  int64_t numel = 0;  // shard_numel, padding included
  DType dtype = v1::FLOAT32;

  int64_t bytes() const { return numel * DTypeBytes(dtype); }
  // The elements as T; the caller has looked at dtype.
  template <typename T>
  absl::Span<T> as() const {
    return absl::MakeSpan(reinterpret_cast<T*>(data), numel);
  }
};

inline ShardSpan FloatShard(absl::Span<float> values) {
  return {reinterpret_cast<char*>(values.data()), static_cast<int64_t>(values.size()), v1::FLOAT32};
}

}  // namespace tessera

#endif  // TESSERA_WORKER_SHARD_SPAN_H_
