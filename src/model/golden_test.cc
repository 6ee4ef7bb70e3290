// Against independent implementations: transformers on tiny models of each architecture, the float64 oracle
// on tiny and on the two real ones.
#include "model/rig_test_support.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
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

// Every case of the folder: a test a file, so that none can be forgotten.
std::vector<std::string> arch_cases(bool quantized) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/arch")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".json" && name.starts_with("q_") == quantized) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Feeds a case's sequences; `each` gets (golden sequence, position, logits).
template <class Each>
void feed_case(const json& golden, const RigOptions& options, const Each& each) {
  Rig rig("tests/golden/arch/" + golden["gguf"].get<std::string>(), options);
  for (const json& sequence : golden["sequences"]) {
    rig.restart();
    rig.feed(sequence["ids"].get<std::vector<int>>(), 13,
             [&](uint32_t position, std::span<const float> logits) { each(sequence, position, logits); });
  }
}

class ArchGolden : public testing::TestWithParam<std::string> {};

TEST_P(ArchGolden, LogitsMatchTransformers) {
  const json golden = read_json("tests/golden/arch/" + GetParam() + ".json");
  const json& allowed = golden["tolerance"];
  const double tolerance = allowed.value("logit_abs", allowed.value("float_activations_logit_abs", 0.0));
  // F32, also where experts are MXFP4: the tolerance is of float activations.
  const RigOptions options{.to_f32 = true, .context = golden["n_ctx"].get<uint32_t>()};
  double worst = 0;
  feed_case(golden, options, [&](const json& sequence, uint32_t position, std::span<const float> logits) {
    const double lse = log_sum_exp(logits);
    const auto next = sequence["next"][position].get<size_t>();
    EXPECT_NEAR(logits[next] - lse, sequence["next_logprob"][position].get<double>(), tolerance) << position;
    if (position + 1 != sequence["ids"].size()) return;
    for (size_t v = 0; v < logits.size(); ++v) {
      const double error = std::abs(logits[v] - sequence["last_logits"][v].get<double>());
      ASSERT_LE(error, tolerance) << "id " << v;
      worst = std::max(worst, error);
    }
  });
  RecordProperty("architecture", golden["metadata"]["general.architecture"].get<std::string>());
  RecordProperty("worst_logit", fmt::format("{:.1e}", worst));
  RecordProperty("tolerance", fmt::format("{:.1e}", tolerance));
}

INSTANTIATE_TEST_SUITE_P(Families, ArchGolden, testing::ValuesIn(arch_cases(false)),
                         [](const auto& row) { return row.param; });

// With the KV codecs that serve, every architecture runs; how far it then is from the reference is reported,
// not judged: the tolerances are far below any 8- or 16-bit cache.
TEST_P(ArchGolden, EveryCodecRuns) {
  const json golden = read_json("tests/golden/arch/" + GetParam() + ".json");
  for (const tensor::KvCodecInfo& codec : codecs_under_test()) {
    double worst = 0;
    const RigOptions options{.codec = codec.codec, .context = golden["n_ctx"].get<uint32_t>()};
    feed_case(golden, options, [&](const json& sequence, uint32_t position, std::span<const float> logits) {
      const auto next = sequence["next"][position].get<size_t>();
      const double wanted = sequence["next_logprob"][position].get<double>();
      ASSERT_TRUE(std::isfinite(logits[next]));
      worst = std::max(worst, std::abs(logits[next] - log_sum_exp(logits) - wanted));
    });
    RecordProperty("worst_logprob_" + std::string(codec.name), fmt::format("{:.1e}", worst));
  }
}

// ---- tiny models, quantized: transformers in float64 on the file's own weights
// --------------------------------

class QuantGolden : public testing::TestWithParam<std::string> {};

// Largest difference of any logit, at the last position of every sequence.
TEST_P(QuantGolden, FloatActivationsMatchTransformers) {
  const json golden = read_json("tests/golden/arch/" + GetParam() + ".json");
  const double tolerance = golden["tolerance"]["float_activations_logit_abs"].get<double>();
  const RigOptions options{.to_f32 = true, .context = golden["n_ctx"].get<uint32_t>()};
  feed_case(golden, options, [&](const json& sequence, uint32_t position, std::span<const float> logits) {
    if (position + 1 != sequence["ids"].size()) return;
    for (size_t v = 0; v < logits.size(); ++v)
      ASSERT_NEAR(logits[v], sequence["last_logits"][v].get<double>(), tolerance) << "id " << v;
  });
}

// As served: activations of 8 bits cost no more than twice what they cost llama.cpp. The median over
// positions: of an expert that flips the rest of a sequence differs by whole units.
TEST_P(QuantGolden, EightBitActivationsAreClose) {
  const json golden = read_json("tests/golden/arch/" + GetParam() + ".json");
  const json& allowed = golden["tolerance"];
  const RigOptions options{.context = golden["n_ctx"].get<uint32_t>()};
  double squares = 0;
  size_t values = 0;
  std::vector<double> next_errors;
  feed_case(golden, options, [&](const json& sequence, uint32_t position, std::span<const float> logits) {
    const auto next = sequence["next"][position].get<size_t>();
    const double wanted = sequence["next_logprob"][position].get<double>();
    next_errors.push_back(std::abs(logits[next] - log_sum_exp(logits) - wanted));
    if (position + 1 != sequence["ids"].size()) return;
    for (size_t v = 0; v < logits.size(); ++v, ++values)
      squares += std::pow(logits[v] - sequence["last_logits"][v].get<double>(), 2);
  });
  const double rms = std::sqrt(squares / static_cast<double>(values));
  std::nth_element(next_errors.begin(), next_errors.begin() + static_cast<ptrdiff_t>(next_errors.size() / 2),
                   next_errors.end());
  RecordProperty("rms", fmt::format("{:.3f}", rms));
  EXPECT_LE(rms, allowed["eight_bit_activations_rms"].get<double>());
  EXPECT_LE(next_errors[next_errors.size() / 2],
            allowed["eight_bit_activations_by_position_p50"].get<double>());
}

INSTANTIATE_TEST_SUITE_P(Files, QuantGolden, testing::ValuesIn(arch_cases(true)),
                         [](const auto& row) { return row.param; });

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
