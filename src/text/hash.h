#pragma once
// A hash of short byte strings and of id pairs, for the tables of this room. Not stored anywhere, so free to
// change.

#include <cstdint>
#include <cstring>
#include <string_view>

namespace tally::text {

inline uint64_t hash_mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD1B54A32D192ED03u);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size();
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = hash_mix(hash, word);
  }
  uint64_t tail = 0;
  for (size_t shift = 0; i < bytes.size(); ++i, shift += 8) {
    tail |= uint64_t{static_cast<uint8_t>(bytes[i])} << shift;
  }
  return hash_mix(hash, tail);
}

}  // namespace tally::text
