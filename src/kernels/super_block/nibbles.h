#pragma once
// The nibble plane of 16 rows x 32 k that the packed K-quants share (256 bytes): byte 64 j + 4 r + i holds
// code k = 4 j + i of row r in its low half and code k = 16 + 4 j + i in its high half; j, i in 0..3. A row's
// four bytes are moved as one word.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tally::kernels {

static inline uint32_t load_word(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
static inline void store_word(uint8_t* p, uint32_t word) { std::memcpy(p, &word, 4); }

// Puts the low four bits of codes[0..31] into row r.
static inline void store_nibbles(const uint8_t* codes, size_t r, uint8_t* plane) {
  for (size_t j = 0; j < 4; ++j) {
    const uint32_t low = load_word(codes + 4 * j) & 0x0F0F0F0Fu;
    const uint32_t high = load_word(codes + 16 + 4 * j) & 0x0F0F0F0Fu;
    store_word(plane + 64 * j + 4 * r, low | (high << 4));
  }
}

// Sets codes[0..31] to the nibbles of row r.
static inline void load_nibbles(const uint8_t* plane, size_t r, uint8_t* codes) {
  for (size_t j = 0; j < 4; ++j) {
    const uint32_t word = load_word(plane + 64 * j + 4 * r);
    store_word(codes + 4 * j, word & 0x0F0F0F0Fu);
    store_word(codes + 16 + 4 * j, (word >> 4) & 0x0F0F0F0Fu);
  }
}

}  // namespace tally::kernels
