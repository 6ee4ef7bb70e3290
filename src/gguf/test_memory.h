#pragma once
// For tests: how much memory a piece of code needs at its worst.

#include <cstddef>

namespace tally::gguf {

// Counts from its construction on.
class MemoryPeak {
 public:
  MemoryPeak();
  size_t bytes() const;  // above the start

 private:
  size_t start_;
};

}  // namespace tally::gguf
