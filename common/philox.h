// Philox4x32-10, a counter-based random number generator: every value is a pure function of a key
// and a counter, so any element of any sequence can be had at once, in any order, by any number of
// processes, without state. (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1,
// 2, 3. SC 2011.)
//
//   const RandomStream words(seed, StreamId("h.0.ln_1.weight"));
//   const PhiloxBlock four = words.Block(element / 4);      // four independent 32-bit words
//   const uint64_t start = words.Below(sequence, text_bytes);
//
// Integer arithmetic alone: the same bits on every machine. Not for secrets. Thread-safety: values,
// immutable.
#ifndef TESSERA_COMMON_PHILOX_H_
#define TESSERA_COMMON_PHILOX_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace tessera {

using PhiloxBlock = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// The block of `counter` under `key`, word 0 first as in the paper's reference implementation.
constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product_1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product_1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product_1),
               static_cast<uint32_t>(product_0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product_0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Stable 64-bit number of a name (FNV-1a): which of a seed's sequences to take.
uint64_t StreamId(absl::string_view name);

// One of the 2^64 sequences of a seed; each has 2^64 blocks.
class RandomStream {
 public:
  constexpr RandomStream(uint64_t seed, uint64_t stream)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        stream_{static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)} {}

  constexpr PhiloxBlock Block(uint64_t index) const {
    return Philox4x32(
        {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream_[0], stream_[1]},
        key_);
  }

  // A number in [0, bound), from the first 64 bits of a block; bound > 0. The bias is at most bound
  // / 2^64.
  uint64_t Below(uint64_t index, uint64_t bound) const;

 private:
  PhiloxKey key_;
  PhiloxKey stream_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_PHILOX_H_
