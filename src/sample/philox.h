#pragma once
// Philox4x32-10: a counter-based random generator. The same key and counter give the same numbers, with no
// state to carry. Source: Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).

#include <array>
#include <cstdint>

namespace tally::sample {

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = kMultiplier0 * counter[0], b = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

// What a number is drawn for: one position has one of each, and none says anything of another.
enum class Stream : uint32_t { kToken = 0, kAccept = 1, kInstead = 2, kGuess = 3 };

// Uniform in [0, 1), a multiple of 2^-53, for one draw.
constexpr double uniform(uint64_t seed, uint32_t choice, uint64_t position, Stream stream = Stream::kToken) {
  const std::array<uint32_t, 4> bits =
      philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice,
                  static_cast<uint32_t>(stream)},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t wide = (uint64_t{bits[0]} << 32 | bits[1]) >> 11;
  return static_cast<double>(wide) * 0x1p-53;
}

}  // namespace tally::sample
