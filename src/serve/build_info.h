#pragma once
// What this binary is.

#include <cstdint>
#include <string>
#include <string_view>

namespace tally::serve {

inline constexpr std::string_view kVersion = "0.1.0";

// The linker's build id, in hex: equal for equal code, "unknown" if the binary carries none.
std::string build_id();
std::string_view compiler();

// 2 * bytes hex digits of operating system randomness.
std::string random_hex(size_t bytes);
// So many of A-Z a-z 0-9, each as likely, from the same source.
std::string random_letters(size_t count);
uint64_t random_bits();

}  // namespace tally::serve
