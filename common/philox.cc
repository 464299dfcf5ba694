#include "common/philox.h"

namespace tessera {

uint64_t StreamId(absl::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3;
  }
  return hash;
}

uint64_t RandomStream::Below(uint64_t index, uint64_t bound) const {
  const PhiloxBlock words = Block(index);
  const uint64_t value = (uint64_t{words[1]} << 32) | words[0];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(value) * bound) >> 64);
}

}  // namespace tessera
