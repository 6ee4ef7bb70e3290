#pragma once
// Bend inputs that were good once, the same way for the same seed: bytes of any kind, and with some knowledge
// of what a GGUF file consists of.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

// splitmix64: a state of eight bytes, so that every input can have a generator of its own.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n == 0 ? 0 : next() % n; }

 private:
  uint64_t state_;
};

// One to four changes of `bytes`; `others` are the seeds, to take pieces of.
std::string mutate(std::string bytes, std::span<const std::string> others, Random& random);
