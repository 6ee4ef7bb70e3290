#include "gguf/split.h"

#include "base/utf8.h"
#include "gguf/scalars.h"

#include <fmt/format.h>

#include <optional>

namespace tally::gguf {
namespace {

constexpr std::string_view kSplitNo = "split.no";
constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitTensors = "split.tensors.count";

base::Error bad_shard(const Shard& shard, std::string_view message) {
  return {base::ErrorCode::kBadData, fmt::format("{}: {}", base::escape_for_log(shard.path), message)};
}

base::Result<std::optional<uint64_t>> split_key(const Shard& shard, std::string_view key, uint64_t min,
                                                uint64_t max) {
  const Metadata* item = shard.header.find(key);
  if (item == nullptr) return std::optional<uint64_t>{};
  TALLY_TRY(const uint64_t value, read_uint(shard.path, *item, min, max));
  return std::optional<uint64_t>{value};
}

std::string shard_suffix(uint64_t number, uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, count);
}

// A further shard must say that it is one of this set, and carry nothing else.
base::Result<void> check_sibling(const Shard& shard, uint64_t number, uint64_t count) {
  TALLY_TRY(const std::optional<uint64_t> its_count, split_key(shard, kSplitCount, count, count));
  TALLY_TRY(const std::optional<uint64_t> its_number, split_key(shard, kSplitNo, number, number));
  if (!its_count || !its_number) {
    return bad_shard(shard, fmt::format("key '{}' is missing: not a shard of this model",
                                        its_count ? kSplitNo : kSplitCount));
  }
  for (const Metadata& item : shard.header.metadata) {
    if (item.key.starts_with("split.") || item.key == "general.alignment") continue;
    return bad_shard(
        shard, fmt::format("byte {}: key '{}' may stand in the first shard only: not a shard of this model",
                           item.offset, base::escape_for_log(item.key)));
  }
  return {};
}

base::Result<void> check_tensor_total(const std::vector<Shard>& shards) {
  TALLY_TRY(const std::optional<uint64_t> wanted, split_key(shards[0], kSplitTensors, 0, INT32_MAX));
  uint64_t total = 0;
  for (const Shard& shard : shards) total += shard.header.tensors.size();
  if (!wanted || *wanted == total) return {};
  return bad_shard(shards[0], fmt::format("key '{}': {} tensors promised, {} found in {} shards",
                                          kSplitTensors, *wanted, total, shards.size()));
}

}  // namespace

base::Result<void> open_siblings(std::vector<Shard>& shards) {
  TALLY_TRY(const std::optional<uint64_t> count, split_key(shards[0], kSplitCount, 1, kShardsMax));
  if (!count) return {};
  TALLY_TRY(const std::optional<uint64_t> number, split_key(shards[0], kSplitNo, 0, *count - 1));
  if (number.value_or(0) != 0) {
    return bad_shard(shards[0], fmt::format("is shard {} of {}: open the first one", *number + 1, *count));
  }
  if (*count > 1) {
    const std::string path = shards[0].path;
    const std::string suffix = shard_suffix(1, *count);
    if (!path.ends_with(suffix)) {
      return bad_shard(shards[0], fmt::format("is the first of {} shards, so its name must end with '{}'",
                                              *count, suffix));
    }
    const std::string prefix = path.substr(0, path.size() - suffix.size());
    for (uint64_t i = 1; i < *count; ++i) {
      TALLY_TRY(Shard shard, open_shard(prefix + shard_suffix(i + 1, *count), false));
      TALLY_TRY_VOID(check_sibling(shard, i, *count));
      for (const Shard& other : shards) {
        if (other.identity.device == shard.identity.device && other.identity.inode == shard.identity.inode) {
          return bad_shard(shard, fmt::format("is the same file as '{}'", base::escape_for_log(other.path)));
        }
      }
      shards.push_back(std::move(shard));
    }
  }
  return check_tensor_total(shards);
}

}  // namespace tally::gguf
