#pragma once
// Whether a KV codec suits a model, seen at load: layers where it does not, keep bf16 (private to the room).

#include "base/accounts.h"
#include "base/ids.h"
#include "base/pool.h"
#include "base/result.h"
#include "model/model.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tally::engine {

struct KvCheck {
  std::vector<tensor::KvCodec> codecs;  // of each layer
  std::vector<uint32_t> kept_bf16;      // layers, ascending
  double worst = 0;                     // their largest damage (Model::kv_damage)
};

// Whether `--kv-check` asks for a check of this codec. Requires: mode is auto, on or off.
bool wants_kv_check(const std::string& mode, tensor::KvCodec codec);

// Runs the first of `tokens` through the model, so many that it takes a second or two on a small machine.
// Their number depends on the model alone, and so does what is found: the type of a layer is the same at
// every start. Requires: as Model::kv_damage of the tokens. Errors: kUnavailable (cap).
base::Result<KvCheck> check_kv(const model::Model& model, tensor::KvCodec codec,
                               std::span<const TokenId> tokens, base::ThreadPool& pool,
                               base::Accounts& accounts);
// The damage above which a layer keeps bf16.
double kv_damage_max(tensor::KvCodec codec);

// What was found, as one line for the log; "" if every layer has the codec.
std::string kv_check_text(const KvCheck& check, tensor::KvCodec codec);

}  // namespace tally::engine
