// G18: a good file with one key changed is refused by a sentence that names the key, and the value where
// there is one.
#include "model/tiny_file_test_support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tally::model {
namespace {

constexpr uint32_t kTwoTo31 = uint32_t{1} << 31;
const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

enum Family : size_t { kLlama, kMoe, kLatent, kPhi3, kGpt2, kGemma3, kGptOss, kBloom, kCommandR };

const TinyFile& tiny(Family family) {
  static const std::vector<TinyFile> files = [] {
    std::vector<TinyFile> made;
    for (const TinyFamily& f : tiny_families()) made.emplace_back(f);
    return made;
  }();
  return files[family];
}

base::Result<ModelSpec> spec_of(const TinyFile& tiny) {
  const UnnamedFile bytes(tiny.bytes());
  const auto file = bytes.open();
  EXPECT_TRUE(file) << (file ? "" : file.error().message);
  return read_spec(*file);
}

struct Missing {};
using Changed = std::variant<Missing, TinyValue>;

struct Case {
  Family family;
  std::string key;
  Changed value;
  std::vector<std::string> says;  // beside the key
};

const std::vector<Case>& cases() {
  const auto v = [](auto value) { return Changed(TinyValue(value)); };
  using Ints = std::vector<int32_t>;
  static const std::vector<Case> rows = {
      {kLlama,
       "general.architecture",
       v(std::string("llama5")),
       {"llama5", "supported are", "llama", "starcoder2"}},
      {kLlama, "general.architecture", v(std::string()), {"supported are"}},
      {kLlama, "general.architecture", v(7u), {"string"}},
      {kLlama, "general.architecture", Missing{}, {"missing"}},
      {kLlama, "general.type", v(std::string("adapter")), {"adapter", "only a model"}},

      {kLlama, "block_count", Missing{}, {"missing"}},
      {kLlama, "block_count", v(0u), {"is 0", "allowed 1 to 1024"}},
      {kLlama, "block_count", v(kTwoTo31), {"2147483648", "allowed 1 to 1024"}},
      {kLlama, "block_count", v(uint64_t{1} << 32 | 1), {"4294967297", "allowed 1 to 1024"}},
      {kLlama, "block_count", v(1.f), {"integer"}},
      {kLlama, "block_count", v(Ints{1}), {"integer"}},
      {kLatent, "nextn_predict_layers", v(2u), {"is 2", "allowed 0 to 1"}},
      {kLlama, "context_length", Missing{}, {"missing"}},
      {kLlama, "context_length", v(0u), {"is 0", "allowed 1 to"}},
      {kLlama, "context_length", v(kTwoTo31), {"2147483648", "allowed 1 to"}},
      {kLlama, "embedding_length", v(0u), {"is 0", "allowed 1 to"}},
      {kLlama, "embedding_length", v(uint64_t{1} << 63), {"9223372036854775808", "allowed 1 to"}},
      {kLlama, "feed_forward_length", Missing{}, {"missing"}},
      {kLlama, "feed_forward_length", v(0u), {"is 0"}},
      {kLlama, "feed_forward_length", v(kTwoTo31), {"2147483648", "allowed 0 to"}},
      {kLlama, "feed_forward_length", v(Ints{32, 32}), {"2", "1"}},
      {kLlama, "feed_forward_length", v(Ints{-1}), {"-1", "allowed 0 to"}},

      {kLlama, "attention.head_count", Missing{}, {"missing"}},
      {kLlama, "attention.head_count", v(0u), {"is 0", "allowed 1 to 4096"}},
      {kLlama, "attention.head_count", v(4097u), {"4097", "allowed 1 to 4096"}},
      {kLlama, "attention.head_count", v(3u), {"3", "multiple", "llama.attention.head_count_kv 2"}},
      {kLlama, "attention.head_count_kv", v(0u), {"is 0", "allowed 1 to 4096"}},
      {kLlama, "attention.head_count_kv", v(3u), {"3", "multiple", "llama.attention.head_count 4"}},
      {kLlama, "attention.head_count_kv", v(8u), {"8", "multiple", "llama.attention.head_count 4"}},
      {kLlama, "attention.key_length", v(0u), {"is 0", "allowed 1 to"}},
      {kLlama, "attention.key_length", v(6u), {"is 6", "even, 8..512"}},
      {kLlama, "attention.key_length", v(9u), {"is 9", "even, 8..512"}},
      {kLlama, "attention.key_length", v(514u), {"is 514", "even, 8..512"}},
      {kLlama, "attention.value_length", v(4u), {"is 4", "even, 8..512"}},
      {kGpt2, "attention.value_length", v(11u), {"is 11", "even, 8..512"}},
      {kLlama, "attention.clamp_kqv", v(-1.f), {"is -1", "at least 0"}},
      {kLlama, "attention.scale", v(kNan), {"nan", "finite"}},
      {kLlama, "attention.layer_norm_rms_epsilon", Missing{}, {"missing"}},
      {kLlama, "attention.layer_norm_rms_epsilon", v(0.f), {"is 0", "between 0 and 1"}},
      {kLlama, "attention.layer_norm_rms_epsilon", v(1e-60), {"1e-60", "between 0 and 1"}},
      {kLlama, "attention.layer_norm_rms_epsilon", v(kNan), {"nan", "finite"}},
      {kLlama, "attention.layer_norm_rms_epsilon", v(1u), {"f32 or f64"}},
      {kGpt2, "attention.layer_norm_epsilon", v(1.f), {"is 1", "between 0 and 1"}},
      {kGemma3, "attn_logit_softcapping", v(-50.f), {"is -50", "at least 0"}},
      {kGemma3, "final_logit_softcapping", v(kInf), {"inf", "finite"}},
      {kGemma3, "final_logit_softcapping", v(1e300), {"1e+300"}},
      {kGemma3, "attention.sliding_window", v(uint64_t{1} << 32), {"4294967296", "allowed 0 to"}},
      {kGemma3, "attention.sliding_window_pattern", v(Ints{1, 0, 1}), {"has 3 elements"}},
      {kGemma3, "attention.sliding_window_pattern", v(Ints{2}), {"2", "allowed 0 to 1"}},
      {kGemma3, "rope.freq_base_swa", v(0.f), {"is 0", "above 0"}},
      {kCommandR, "logit_scale", v(-1.f), {"is -1", "at least 0"}},
      {kCommandR, "logit_scale", v(1e300), {"1e+300"}},
      {kCommandR, "residual_scale", v(kNan), {"nan", "finite"}},
      {kCommandR, "embedding_scale", v(1e39), {"1e+39"}},

      {kLlama, "rope.dimension_count", v(0u), {"is 0", "allowed 2 to"}},
      {kLlama, "rope.dimension_count", v(3u), {"is 3", "even"}},
      {kLlama, "rope.dimension_count", v(10u), {"is 10", "at most 8"}},
      {kLlama, "rope.dimension_count", v(kTwoTo31), {"2147483648", "allowed 2 to"}},
      {kLatent, "rope.dimension_count", v(12u), {"is 12", "below the key length 12"}},
      {kLlama, "rope.freq_base", v(0.f), {"is 0", "above 0"}},
      {kLlama, "rope.freq_base", v(-1e4f), {"is -10000", "above 0"}},
      {kLlama, "rope.freq_base", v(kInf), {"inf", "finite"}},
      {kLlama, "rope.scaling.type", v(std::string("su\n")), {"su\\x0a", "none, linear, yarn and longrope"}},
      {kLlama, "rope.scaling.factor", v(-2.f), {"is -2", "at least 0"}},
      {kLatent, "rope.scaling.original_context_length", v(0u), {"is 0", "allowed 1 to"}},
      {kLatent, "rope.scaling.yarn_beta_fast", v(0.f), {"is 0", "above 0"}},
      {kPhi3, "rope.scaling.attn_factor", v(-1.f), {"is -1", "above 0"}},

      {kMoe, "expert_count", v(1025u), {"1025", "allowed 0 to 1024"}},
      {kMoe, "expert_used_count", Missing{}, {"missing"}},
      {kMoe, "expert_used_count", v(0u), {"missing or 0"}},
      {kMoe, "expert_used_count", v(5u), {"is 5", "allowed 0 to 4"}},
      {kMoe, "expert_gating_func", v(4u), {"is 4", "allowed 0 to 3"}},
      {kMoe, "expert_weights_scale", v(-1.f), {"is -1", "at least 0"}},
      {kMoe, "expert_weights_norm", v(1u), {"bool"}},
      {kLatent, "expert_group_count", v(3u), {"3", "expert_count 4"}},
      {kLatent, "expert_group_count", v(5u), {"is 5", "allowed 0 to 4"}},
      {kLatent, "expert_group_used_count", v(0u), {"0", "expert_count 4"}},
      {kLatent, "expert_group_used_count", v(3u), {"3", "expert_count 4"}},
      {kLatent, "expert_used_count", v(3u), {"expert_used_count 3"}},
      {kLatent, "expert_shared_count", v(65u), {"is 65", "allowed 0 to 64"}},
      {kLatent, "expert_feed_forward_length", v(0u), {"missing"}},
      {kLatent, "attention.kv_lora_rank", Missing{}, {"missing"}},
      {kLatent, "attention.kv_lora_rank", v(0u), {"is 0", "allowed 1 to"}},
      {kLatent, "attention.q_lora_rank", v(kTwoTo31), {"2147483648", "allowed 0 to"}},
  };
  return rows;
}

TEST(Spec, TinyFilesAreGood) {
  for (size_t f = kLlama; f <= kCommandR; ++f) {
    const auto spec = spec_of(tiny(static_cast<Family>(f)));
    EXPECT_TRUE(spec) << (spec ? "" : spec.error().message);
  }
}

TEST(Spec, G18OneKeyChangedIsRefusedByName) {
  for (const Case& row : cases()) {
    TinyFile changed = tiny(row.family);
    const std::string& shown = row.key;
    if (const auto* value = std::get_if<TinyValue>(&row.value))
      changed.keys()[row.key] = *value;
    else
      changed.keys().erase(row.key);
    const auto spec = spec_of(changed);
    ASSERT_FALSE(spec) << shown << ": taken; wanted " << row.says[0];
    EXPECT_EQ(spec.error().code, base::ErrorCode::kBadData);
    const std::string& message = spec.error().message;
    EXPECT_NE(message.find(row.key), std::string::npos) << shown << ": " << message;
    for (const std::string& part : row.says) {
      EXPECT_NE(message.find(part), std::string::npos) << shown << ": no '" << part << "' in: " << message;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

// What these keys say is odd and legal: it must be taken as it stands.
TEST(Spec, OddButLegalValuesAreTaken) {
  TinyFile moe = tiny(kLatent);
  moe.keys()["expert_group_count"] = 1u;  // one group is none
  moe.keys()["expert_group_used_count"] = 1u;
  const auto one_group = spec_of(moe);
  ASSERT_TRUE(one_group) << one_group.error().message;
  EXPECT_EQ(one_group->moe.groups, 0u);

  TinyFile dense = tiny(kMoe);
  dense.keys()["expert_count"] = 0u;
  const auto none = spec_of(dense);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_FALSE(none->layer[0].moe);

  TinyFile wide = tiny(kLlama);
  wide.keys()["block_count"] = uint64_t{1};  // any width of integer
  wide.keys()["attention.head_count_kv"] = std::vector<int32_t>{2};
  const auto taken = spec_of(wide);
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_EQ(taken->layers, 1u);
  EXPECT_EQ(taken->layer[0].kv_heads, 2u);

  TinyFile bloom = tiny(kBloom);  // slopes for a number of heads that is no power of two
  bloom.keys()["attention.head_count"] = 3u;
  bloom.keys()["attention.head_count_kv"] = 3u;
  const auto three = spec_of(bloom);
  ASSERT_TRUE(three) << three.error().message;
  EXPECT_EQ(three->attention.alibi_bias_max, 8.f);
}

}  // namespace
}  // namespace tally::model
