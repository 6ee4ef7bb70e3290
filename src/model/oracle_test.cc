// The two real models (models/, fetched by tools/fetch-model) against the float64 oracle of tests/golden, and
// int8 KV against our own f32 KV. Left out of sanitizer builds by `check`: minutes there, and every line is
// run by the tiny models too.
#include "model/rig_test_support.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace tally::model {
namespace {

using nlohmann::json;

struct RealModel {
  const char* golden;
  const char* file;
  double served_tolerance;  // 1.1 x llama.cpp's own mean |delta next_logprob|
  double served_kld_max;    // of int8 KV against f32 KV, both with 8-bit activations: measured x 1.5
};

constexpr RealModel kModels[] = {
    {"smollm2", "models/smollm2-135m-instruct-q4_1.gguf", 0.061, 0.0085},
    {"gemma3", "models/gemma3-270m-q4_k_m.gguf", 0.094, 0.035},
};

std::string name_of(const testing::TestParamInfo<RealModel>& info) { return info.param.golden; }

json golden_of(const RealModel& model) {
  std::ifstream in(std::string("tests/golden/") + model.golden + ".json");
  return json::parse(in);
}

// Mean |delta next_logprob| over every golden position of every prompt.
double mean_delta(Rig& rig, const json& golden) {
  double sum = 0;
  size_t n = 0;
  for (const json& prompt : golden["prompts"]) {
    const auto ids = prompt["ids"].get<std::vector<int>>();
    rig.restart();
    rig.feed(ids, 256, [&](uint32_t position, std::span<const float> logits) {
      if (position + 1 == ids.size()) return;
      const double logprob = logits[static_cast<size_t>(ids[position + 1])] - log_sum_exp(logits);
      sum += std::abs(logprob - prompt["next_logprob"][position].get<double>());
      ++n;
    });
  }
  EXPECT_GT(n, 1400u);
  return sum / static_cast<double>(n);
}

class Oracle : public testing::TestWithParam<RealModel> {};

TEST_P(Oracle, ExactMode) {
  Rig rig(GetParam().file, {.to_f32 = true, .context = 1024});
  const double delta = mean_delta(rig, golden_of(GetParam()));
  RecordProperty("mean_abs_delta_logprob", std::to_string(delta));
  EXPECT_LE(delta, 5e-5);
  EXPECT_GT(delta, 0);
}

TEST_P(Oracle, AsServedWithF32Cache) {
  const json golden = golden_of(GetParam());
  Rig rig(GetParam().file, {.context = 1024});
  const double delta = mean_delta(rig, golden);
  RecordProperty("mean_abs_delta_logprob", std::to_string(delta));
  EXPECT_LE(delta, GetParam().served_tolerance);

  // The oracle's own continuation, fed back: the best token must agree wherever its margin is clear.
  const double margin_min = golden["tolerance"]["greedy_margin_min"].get<double>();
  size_t compared = 0;
  for (const json& prompt : golden["prompts"]) {
    auto ids = prompt["ids"].get<std::vector<int>>();
    const size_t prompt_length = ids.size();
    const auto greedy = prompt["greedy"]["ids"].get<std::vector<int>>();
    ids.insert(ids.end(), greedy.begin(), greedy.end() - 1);
    rig.restart();
    rig.feed(ids, 256, [&](uint32_t position, std::span<const float> logits) {
      if (position + 1 < prompt_length) return;
      const size_t step = position + 1 - prompt_length;
      if (prompt["greedy"]["margin"][step].get<double>() < margin_min) return;
      EXPECT_EQ(argmax(logits), static_cast<size_t>(greedy[step])) << prompt["id"] << " step " << step;
      ++compared;
    });
  }
  EXPECT_GT(compared, 50u);
}

// Mean KL divergence over the golden prompts of a rig with another KV codec against one with the f32 codec.
double codec_divergence(const RealModel& model, tensor::KvCodec codec, bool to_f32) {
  const json golden = golden_of(model);
  Rig exact(model.file, {.to_f32 = to_f32, .context = 1024});
  Rig coded(model.file, {.to_f32 = to_f32, .codec = codec, .context = 1024});
  double sum = 0;
  size_t n = 0;
  for (const json& prompt : golden["prompts"]) {
    const auto ids = prompt["ids"].get<std::vector<int>>();
    std::vector<std::vector<float>> rows(ids.size());
    exact.restart(), coded.restart();
    // Not every position: the sum over a vocabulary of 262,144 is most of the time here.
    const uint32_t step = exact.model().spec().vocab > 100'000 ? 16 : 4;
    exact.feed(ids, 256, [&](uint32_t position, std::span<const float> logits) {
      if (position % step != 0) return;
      const double lse = log_sum_exp(logits);
      rows[position].reserve(logits.size());
      for (const float x : logits) rows[position].push_back(static_cast<float>(x - lse));
    });
    coded.feed(ids, 256, [&](uint32_t position, std::span<const float> logits) {
      if (position % step != 0) return;
      const double lse = log_sum_exp(logits);
      for (size_t v = 0; v < logits.size(); ++v) {
        const double p = rows[position][v];
        sum += std::exp(p) * (p - (logits[v] - lse));
      }
      ++n;
    });
  }
  return sum / static_cast<double>(n);
}

// What a codec costs by itself, with float weights: 8-bit activations would drown it (they amplify any
// last-bit difference). The limits are three times what was measured.
TEST_P(Oracle, CodecDivergence) {
  const double bf16 = codec_divergence(GetParam(), tensor::KvCodec::kBf16, true);
  const double int8 = codec_divergence(GetParam(), tensor::KvCodec::kInt8, true);
  RecordProperty("mean_kld_bf16", std::to_string(bf16));
  RecordProperty("mean_kld_int8", std::to_string(int8));
  EXPECT_LE(bf16, 1e-4);
  EXPECT_LE(int8, 0.004);
  EXPECT_GT(int8, 0);
}

// As served, any codec's last-bit differences are amplified: bf16 gave 0.0050 and 0.0180 here, int8 0.0055
// and 0.0227. The default --kv-type would be int8 if this were <= 0.004 for both models; it is bf16 until
// then.
TEST_P(Oracle, CodecDivergenceAsServed) {
  const double int8 = codec_divergence(GetParam(), tensor::KvCodec::kInt8, false);
  RecordProperty("mean_kld_int8", std::to_string(int8));
  EXPECT_LE(int8, GetParam().served_kld_max);
}

// Measured 0.0631 and 0.1089: above the gate of the f32 cache, the other reason for the default.
TEST_P(Oracle, AsServedWithInt8Cache) {
  Rig rig(GetParam().file, {.codec = tensor::KvCodec::kInt8, .context = 1024});
  const double delta = mean_delta(rig, golden_of(GetParam()));
  RecordProperty("mean_abs_delta_logprob", std::to_string(delta));
  EXPECT_LE(delta, 1.25 * GetParam().served_tolerance);
}

INSTANTIATE_TEST_SUITE_P(Models, Oracle, testing::ValuesIn(kModels), name_of);

}  // namespace
}  // namespace tally::model
