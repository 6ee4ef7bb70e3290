#pragma once
// SHA-256 (libcrypto): the one hash of keys, files and fingerprints.

#include "base/result.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tally::base {

using Digest = std::array<uint8_t, 32>;
Digest sha256(std::string_view bytes);
std::string hex(const Digest& digest);
// Errors: kNoInput, kIo.
Result<Digest> sha256_file(const std::string& path);

}  // namespace tally::base
