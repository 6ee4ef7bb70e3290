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
  double int8_kld_max;      // of int8 KV against f32 KV, float weights and activations
};

constexpr RealModel kModels[] = {
    {"smollm2", "models/smollm2-135m-instruct-q4_1.gguf", 0.061, 0.0085, 0.0006},
    {"gemma3", "models/gemma3-270m-q4_k_m.gguf", 0.094, 0.035, 0.002},
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

// Mean KL divergence, from position `first` of the golden prompts on, of rigs with other KV codecs against
// one with the f32 codec.
std::vector<double> codec_divergences(const RealModel& model, std::span<const tensor::KvCodec> codecs,
                                      bool to_f32, uint32_t first) {
  const json golden = golden_of(model);
  std::vector<std::vector<int>> prompts;
  for (const json& prompt : golden["prompts"])
    if (prompt["ids"].size() > first) prompts.push_back(prompt["ids"].get<std::vector<int>>());
  Rig exact(model.file, {.to_f32 = to_f32, .context = 1024});
  // Not every position: the sum over a vocabulary of 262,144 is most of the time here.
  const uint32_t step = exact.model().spec().vocab > 100'000 ? 16 : 4;
  const auto each_sample = [&](Rig& rig, size_t prompt, const auto& visit) {
    rig.restart();
    rig.feed(prompts[prompt], 256, [&](uint32_t position, std::span<const float> logits) {
      if (position >= first && position % step == 0) visit(position, logits, log_sum_exp(logits));
    });
  };

  std::vector<std::vector<std::vector<float>>> rows;  // log probabilities: [prompt][position][vocabulary]
  for (size_t i = 0; i < prompts.size(); ++i) {
    rows.emplace_back(prompts[i].size());
    each_sample(exact, i, [&](uint32_t position, std::span<const float> logits, double lse) {
      for (const float x : logits) rows[i][position].push_back(static_cast<float>(x - lse));
    });
  }
  std::vector<double> means;
  for (const tensor::KvCodec codec : codecs) {
    Rig coded(model.file, {.to_f32 = to_f32, .codec = codec, .context = 1024});
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < prompts.size(); ++i)
      each_sample(coded, i, [&](uint32_t position, std::span<const float> logits, double lse) {
        for (size_t v = 0; v < logits.size(); ++v) {
          const double p = rows[i][position][v];
          sum += std::exp(p) * (p - (logits[v] - lse));
        }
        ++n;
      });
    means.push_back(sum / static_cast<double>(n));
  }
  return means;
}

// What a codec costs by itself, with float weights: 8-bit activations would drown it (they amplify any
// last-bit difference). On running text, behind a context that is long enough to matter.
TEST_P(Oracle, CodecDivergence) {
  using tensor::KvCodec;
  constexpr KvCodec kCodecs[] = {KvCodec::kBf16, KvCodec::kInt8, KvCodec::kK8V4, KvCodec::kInt4};
  const std::vector<double> mean = codec_divergences(GetParam(), kCodecs, true, 256);
  for (size_t i = 0; i < mean.size(); ++i)
    RecordProperty("mean_kld_" + std::string(tensor::kv_codec_info(kCodecs[i]).name),
                   std::to_string(mean[i]));
  EXPECT_LE(mean[0], 1e-4);
  EXPECT_LE(mean[1], GetParam().int8_kld_max);
  EXPECT_LE(mean[2], 0.008);
  // A codec that is never read back would cost nothing; fewer bits cost more.
  EXPECT_GT(mean[0], 0);
  EXPECT_GT(mean[1], mean[0]);
  EXPECT_GT(mean[2], mean[1]);
  EXPECT_GT(mean[3], mean[2]);
}

// As served, any codec's last-bit differences are amplified: bf16 gave 0.0050 and 0.0180 here, int8 0.0055
// and 0.0227.
TEST_P(Oracle, CodecDivergenceAsServed) {
  constexpr tensor::KvCodec kCodecs[] = {tensor::KvCodec::kInt8};
  const double int8 = codec_divergences(GetParam(), kCodecs, false, 0).front();
  RecordProperty("mean_kld_int8", std::to_string(int8));
  EXPECT_LE(int8, GetParam().served_kld_max);
}

// Measured 0.0631 and 0.1089; the gate of the f32 cache is 0.061 and 0.094.
TEST_P(Oracle, AsServedWithInt8Cache) {
  Rig rig(GetParam().file, {.codec = tensor::KvCodec::kInt8, .context = 1024});
  const double delta = mean_delta(rig, golden_of(GetParam()));
  RecordProperty("mean_abs_delta_logprob", std::to_string(delta));
  EXPECT_LE(delta, 1.25 * GetParam().served_tolerance);
}

INSTANTIATE_TEST_SUITE_P(Models, Oracle, testing::ValuesIn(kModels), name_of);

}  // namespace
}  // namespace tally::model
