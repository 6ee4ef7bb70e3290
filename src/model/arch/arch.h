#pragma once
// The list of architecture families: one file each, metadata -> ModelSpec. The words of architecture names
// occur only here.

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/spec.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::model {

// Fills what differs from the shared default; `spec` already holds the keys that all architectures share.
using ArchFn = base::Result<void> (*)(const gguf::File& file, ModelSpec& spec);

struct Arch {
  std::string_view name;  // general.architecture
  ArchFn read;
};
std::span<const Arch> arch_list();

// Which layers slide: `key` is a period n (layer i slides unless i % n == n - 1), one flag a layer, or absent
// (the default period). 0: none.
base::Result<std::vector<bool>> read_window_pattern(const gguf::File& file, const std::string& key,
                                                    const ModelSpec& spec, uint64_t default_period);

base::Result<void> read_llama(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_gemma3(const gguf::File& file, ModelSpec& spec);

}  // namespace tally::model
