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
};

constexpr RealModel kModels[] = {
    {"smollm2", "models/smollm2-135m-instruct-q4_1.gguf", 0.061},
    {"gemma3", "models/gemma3-270m-q4_k_m.gguf", 0.094},
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
  EXPECT_GT(n, 1500u);
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

// The default --kv-type is int8 because this holds: mean KL divergence of int8 KV against our own f32 KV.
TEST_P(Oracle, Int8CacheDivergence) {
  const json golden = golden_of(GetParam());
  Rig exact(GetParam().file, {.context = 1024});
  Rig quantized(GetParam().file, {.codec = tensor::KvCodec::kInt8, .context = 1024});
  double sum = 0;
  size_t n = 0;
  for (const json& prompt : golden["prompts"]) {
    const auto ids = prompt["ids"].get<std::vector<int>>();
    std::vector<std::vector<float>> rows(ids.size());
    exact.restart(), quantized.restart();
    exact.feed(ids, 256, [&](uint32_t position, std::span<const float> logits) {
      const double lse = log_sum_exp(logits);
      rows[position].reserve(logits.size());
      for (const float x : logits) rows[position].push_back(static_cast<float>(x - lse));
    });
    quantized.feed(ids, 256, [&](uint32_t position, std::span<const float> logits) {
      const double lse = log_sum_exp(logits);
      double kl = 0;
      for (size_t v = 0; v < logits.size(); ++v) {
        const double p = rows[position][v];
        kl += std::exp(p) * (p - (logits[v] - lse));
      }
      sum += kl, ++n;
    });
  }
  RecordProperty("mean_kld", std::to_string(sum / static_cast<double>(n)));
  EXPECT_LE(sum / static_cast<double>(n), 0.004);
}

INSTANTIATE_TEST_SUITE_P(Models, Oracle, testing::ValuesIn(kModels), name_of);

}  // namespace
}  // namespace tally::model
