#include "engine/kv_check.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::engine {

using tensor::KvCodec;

bool wants_kv_check(const std::string& mode, KvCodec codec) {
  if (mode == "off" || codec == KvCodec::kF32 || codec == KvCodec::kBf16) return false;
  return mode == "on" || codec != KvCodec::kInt8;
}

double kv_damage_max(KvCodec codec) {
  // Some times what the worst layer of models shows that the codec suits (docs/kv-codecs.md).
  switch (codec) {
    case KvCodec::kF32:
    case KvCodec::kBf16:
      return 1;
    case KvCodec::kInt8:
      return .03;
    case KvCodec::kK8V4:
      return .1;
    case KvCodec::kInt4:
      return .15;
  }
  TALLY_UNREACHABLE("KV codec");
}

base::Result<KvCheck> check_kv(const model::Model& model, KvCodec codec, std::span<const TokenId> tokens,
                               base::ThreadPool& pool, base::Accounts& accounts) {
  // Two cores of 2020 multiply some 60e9 weights a second in prefill.
  constexpr uint64_t kWeightBytesTimesTokens = uint64_t{64} << 30;
  constexpr size_t kTokensMin = 16;
  const size_t affordable = kWeightBytesTimesTokens / std::max<uint64_t>(1, model.weight_bytes());
  const size_t count = std::min(tokens.size(), std::max(affordable, kTokensMin));
  KvCheck check;
  check.codecs.assign(model.spec().layer.size(), codec);
  if (count == 0) return check;
  TALLY_TRY(const std::vector<double> damage, model.kv_damage(tokens.first(count), codec, pool, accounts));
  for (uint32_t layer = 0; layer < damage.size(); ++layer) {
    if (damage[layer] <= kv_damage_max(codec)) continue;
    check.codecs[layer] = KvCodec::kBf16;
    check.kept_bf16.push_back(layer);
    check.worst = std::max(check.worst, damage[layer]);
  }
  return check;
}

std::string kv_check_text(const KvCheck& check, KvCodec codec) {
  if (check.kept_bf16.empty()) return "";
  std::string layers;
  for (const uint32_t layer : check.kept_bf16) layers += (layers.empty() ? "" : ", ") + std::to_string(layer);
  return fmt::format(
      "--kv-type {} does not suit {} of {} layers ({}): their attention loses up to {:.1f} %, and {:.1f} % "
      "is "
      "let pass; they keep bf16 (with --kv-check off they do not)",
      tensor::kv_codec_info(codec).name, check.kept_bf16.size(), check.codecs.size(), layers,
      100 * check.worst, 100 * kv_damage_max(codec));
}

}  // namespace tally::engine
