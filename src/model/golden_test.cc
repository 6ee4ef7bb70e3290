// Against independent implementations: transformers on tiny models of each architecture, the float64 oracle
// on tiny and on the two real ones.
#include "model/rig_test_support.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace tally::model {
namespace {

using nlohmann::json;

json read_json(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  return json::parse(in);
}

// ---- tiny models, float weights: transformers in float64
// ---------------------------------------------------------------------

class ArchGolden : public testing::TestWithParam<const char*> {};

TEST_P(ArchGolden, LogitsMatchTransformers) {
  const std::string dir = "tests/golden/arch/";
  const json golden = read_json(dir + GetParam() + ".json");
  const double tolerance = golden["tolerance"]["logit_abs"].get<double>();
  Rig rig(dir + golden["gguf"].get<std::string>(), {.context = 256});
  for (const json& sequence : golden["sequences"]) {
    const auto ids = sequence["ids"].get<std::vector<int>>();
    rig.restart();
    rig.feed(ids, 13, [&](uint32_t position, std::span<const float> logits) {
      const double lse = log_sum_exp(logits);
      const auto next = sequence["next"][position].get<size_t>();
      EXPECT_NEAR(logits[next] - lse, sequence["next_logprob"][position].get<double>(), tolerance)
          << position;
      if (position + 1 != ids.size()) return;
      for (size_t v = 0; v < logits.size(); ++v) {
        ASSERT_NEAR(logits[v], sequence["last_logits"][v].get<double>(), tolerance) << "id " << v;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ArchGolden,
                         testing::Values("llama_gqa", "llama_mha_tied", "llama_bias", "llama_linear",
                                         "llama_rope3", "mistral", "gemma3"),
                         [](const auto& row) { return std::string(row.param); });

// ---- tiny models, quantized: the float64 oracle
// ------------------------------------------------------------------------------

struct Tiny {
  const char* name;
  bool to_f32;
  double tolerance;  // largest |logit difference|
};

class TinyGolden : public testing::TestWithParam<Tiny> {};

// The logits of these models have a standard deviation of about 3. With f32 weights a right float pass stays
// within 1e-4; int8 activations cost a few tenths (llama.cpp's own differences, tiny.json, are of that size).
TEST_P(TinyGolden, LogitsMatchOracle) {
  const Tiny& row = GetParam();
  const json golden = read_json("tests/golden/tiny/tiny.json");
  for (const json& model : golden["models"]) {
    if (model["model"] != std::string(row.name) + ".gguf") continue;
    const auto ids = model["ids"].get<std::vector<int>>();
    std::ifstream in(std::string("tests/golden/tiny/") + row.name + ".logits", std::ios::binary);
    Rig rig(std::string("tests/golden/tiny/") + row.name + ".gguf", {.to_f32 = row.to_f32, .context = 256});
    double worst = 0;
    rig.feed(ids, 5, [&](uint32_t, std::span<const float> logits) {
      std::vector<float> wanted(logits.size());
      in.read(reinterpret_cast<char*>(wanted.data()),
              static_cast<std::streamsize>(wanted.size() * sizeof(float)));
      ASSERT_TRUE(in);
      for (size_t v = 0; v < logits.size(); ++v) {
        worst = std::max(worst, std::abs(static_cast<double>(logits[v]) - static_cast<double>(wanted[v])));
      }
    });
    EXPECT_LE(worst, row.tolerance);
    EXPECT_GT(worst, 0) << "nothing was compared";
    return;
  }
  FAIL() << row.name << " is not in tiny.json";
}

INSTANTIATE_TEST_SUITE_P(Types, TinyGolden,
                         testing::Values(Tiny{"tiny-f32", false, 1e-4}, Tiny{"tiny-q-q4_0", true, 1e-4},
                                         Tiny{"tiny-q-q4_k_m", true, 1e-4}, Tiny{"tiny-q-q8_0", true, 1e-4},
                                         Tiny{"tiny-q-q4_0", false, 0.6}, Tiny{"tiny-q-q4_k_m", false, 0.6},
                                         Tiny{"tiny-q-q8_0", false, 0.6}),
                         [](const auto& row) {
                           std::string name = row.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + (row.param.to_f32 ? "_exact" : "_served");
                         });

}  // namespace
}  // namespace tally::model
