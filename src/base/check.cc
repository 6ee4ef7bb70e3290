#include "base/check.h"

#include <unistd.h>

#include <cstdlib>

namespace tally::base {

void check_failed(const char* file, int line, const char* condition, const std::string& what) {
  const std::string text = std::string("tally: CHECK failed at ") + file + ":" + std::to_string(line) + ": " +
                           what + " (" + condition + ")\n";
  // write(2), not a stream: this must work when everything else is broken.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  std::abort();
}

}  // namespace tally::base
