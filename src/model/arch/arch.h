#pragma once
// The list of architecture families: one file each, metadata -> ModelSpec. The words of architecture names
// occur only here.

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/spec.h"

#include <span>
#include <string_view>
#include <vector>

namespace tally::model {

// Fills what differs from the shared default; `spec` already holds the keys that all architectures share, but
// for the experts, whose defaults it may set.
using ArchFn = base::Result<void> (*)(const gguf::File& file, ModelSpec& spec);

struct Arch {
  std::string_view name;  // general.architecture
  ArchFn read;
};
std::span<const Arch> arch_list();

// What holds where the file does not say it.
struct WindowDefaults {
  uint64_t period = 0;
  uint32_t window = 0;   // 0: none
  double rope_base = 0;  // of the layers that slide; 0: that of the others
};

// Gives the layers that slide their window and rope base, and says which they are; none if there is no
// window. The file's pattern is a period n (layer i slides unless i % n == n - 1; 0: all do), one flag a
// layer, or absent.
base::Result<std::vector<bool>> read_windows(const gguf::File& file, ModelSpec& spec,
                                             const WindowDefaults& defaults);

// Whether the FFN has a norm of its own.
bool has_ffn_norm(const gguf::File& file);

void set_rope(ModelSpec& spec, RopeKind kind);  // of every layer
void unscale_rope(RopeSpec& rope);              // what it is without context extension
void scale_scores_by_width(ModelSpec& spec);    // 1 / sqrt(embedding / heads)

base::Result<void> read_arcee(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_bloom(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_cohere2(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_command_r(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_deepseek2(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_exaone4(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_falcon(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_gemma(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_gemma2(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_gemma3(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_glm4(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_gpt2(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_gpt_oss(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_gptneox(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_granite(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_llama(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_nemotron(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_neox_llama(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_olmo(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_olmo2(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_olmoe(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_phi2(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_qwen2moe(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_qwen3(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_smollm3(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_stablelm(const gguf::File& file, ModelSpec& spec);
base::Result<void> read_starcoder2(const gguf::File& file, ModelSpec& spec);

}  // namespace tally::model
