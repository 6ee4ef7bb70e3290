#pragma once
// Models split over several files, `<prefix>-00001-of-00003.gguf` and so on.  Source: llama.cpp gguf-split.

#include "base/result.h"
#include "gguf/file_state.h"

#include <string>
#include <vector>

namespace tally::gguf {

inline constexpr uint64_t kShardsMax = 1024;  // ours

// Opens the further shards if shards[0] is the first of several. File names come from the path of the first
// shard only, never from metadata. Errors: kNoInput, kBadData, kIo.
base::Result<void> open_siblings(std::vector<Shard>& shards);

}  // namespace tally::gguf
