// Numbers that are the same for a seed on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace tally::measure {

// SplitMix64 (Steele, Lea, Flood 2014), keyed by a list of numbers: independent streams without a shared
// state.
class Draw {
 public:
  Draw(std::initializer_list<uint64_t> key) {
    for (const uint64_t part : key) state_ = next() ^ part;
  }

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // In [0, n), n >= 1; the bias is below n / 2^64.
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  double exponential() { return -std::log1p(-uniform()); }
  double normal() {  // Box and Muller; the second of the pair is left
    return std::sqrt(2 * exponential()) * std::cos(6.283185307179586 * uniform());
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace tally::measure
