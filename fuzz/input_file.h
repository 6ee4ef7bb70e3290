#pragma once
// An input as a file in memory, for readers that take a path. One file for all inputs: a new one each time
// would cost more than most inputs do.

#include "base/check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

// The path of a file that holds the input until the next call.
inline std::string input_file(const uint8_t* data, size_t size) {
  static const int fd = memfd_create("input", MFD_CLOEXEC);
  TALLY_CHECK(fd >= 0, "memfd_create");
  TALLY_CHECK(ftruncate(fd, static_cast<off_t>(size)) == 0, "resize a memory file");
  TALLY_CHECK(pwrite(fd, data, size, 0) == static_cast<ssize_t>(size), "write to a memory file");
  return "/proc/self/fd/" + std::to_string(fd);
}
