// libFuzzer with the same knowledge of the formats as the driver without it: every other input is bent by it.

#include "fuzz/mutator.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max, unsigned seed);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max, unsigned seed) {
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, size_max);
  Random random(seed);
  const std::string before(reinterpret_cast<const char*>(data), size);
  const std::string after = mutate(before, {&before, 1}, random);
  const size_t kept = std::min(after.size(), size_max);
  std::memcpy(data, after.data(), kept);
  return kept;
}
