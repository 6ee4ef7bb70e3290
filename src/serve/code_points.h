#pragma once
// Offsets into texts are told in code points.

#include "base/utf8.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace tally::serve {

// Counts code points of a byte stream that is cut anywhere.
class CodePoints {
 public:
  size_t count() const { return count_; }
  void add(std::string_view bytes) {
    tail_ += bytes;
    std::string_view rest = tail_;
    while (!rest.empty()) {
      const base::Utf8Step step = base::utf8_step(rest);
      if (step.kind == base::Utf8Step::kIncomplete) break;
      ++count_;
      rest.remove_prefix(step.length);
    }
    tail_ = std::string(rest);
  }

 private:
  std::string tail_;
  size_t count_ = 0;
};

}  // namespace tally::serve
