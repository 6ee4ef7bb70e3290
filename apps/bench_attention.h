#pragma once
// Attention over the KV cache on its own: one generated token, and a piece of a prompt, at the end of a
// context.
//
// The cache is that of one sequence in as many layers as leave the caches of the CPU behind, gone through in
// turn; a layer is spread over the threads as the model does it, an item for each KV head (and 32 tokens of a
// prompt). A repetition runs for at least 20 ms.

#include "base/accounts.h"
#include "base/result.h"
#include "bench_roof.h"
#include "kernels/kernels.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

struct AttentionShape {
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
};

enum class AttentionForm : uint8_t { kPaged, kStandard };
inline constexpr std::string_view kAttentionForms[] = {"paged", "standard"};

struct AttentionBenchSettings {
  std::vector<kernels::Isa> isas;  // each one the host has
  std::vector<tensor::KvCodec> codecs;
  std::vector<AttentionForm> forms = {AttentionForm::kPaged};
  std::vector<uint32_t> contexts;
  std::vector<AttentionShape> shapes;
  uint32_t prefill = 512, repetitions = 5, block_tokens = 64;
};

struct AttentionMeasure {
  AttentionForm form = AttentionForm::kPaged;
  tensor::KvCodec codec{};
  kernels::Isa isa{};
  AttentionShape shape;
  uint32_t context = 0, tokens = 0;  // tokens 1: decode
  std::vector<double> seconds;       // of one layer
  double bytes = 0,
         operations = 0;       // of one layer: keys and values once; two for each product of q k and of p v
  double operations_roof = 0;  // a second, of its tier and codec; 0: none
  uint64_t memory_bytes = 0;   // that one layer wants at its peak: cache, scratch, score matrix
};

// Measures every form that is a tier's own; the textbook one, which has no tiers, once. `go_on`: as in
// bench_kernels. Errors: kUnavailable (a context that does not fit).
base::Result<std::vector<AttentionMeasure>> bench_attention(
    const AttentionBenchSettings& settings, base::Accounts& accounts, base::ThreadPool& pool, Roofs& roofs,
    const std::function<bool(double share, const std::string& now)>& go_on);

}  // namespace tally::apps
