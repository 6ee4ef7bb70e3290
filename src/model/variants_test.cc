// Files that differ from those of tests/golden/arch as users' files do: other keys, tensors fused, split,
// absent or of other types. Against llama.cpp, against the logits of the file they come from, or refused in
// so many words.
#include "model/rig_test_support.h"
#include "model/tiny_file_test_support.h"
#include "model/variant_test_support.h"

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tally::model {
namespace {

using nlohmann::json;

const std::string kFolder = "tests/golden/";

json read_case(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  return json::parse(in);
}

std::vector<std::string> variant_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder + "variants")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string make_file(const json& variant) {
  const auto base = gguf::File::open(kFolder + "arch/" + variant["base"].get<std::string>());
  EXPECT_TRUE(base);
  return VariantFile(*base, variant, kernels::kernel_table(kernels::best_isa()), false).bytes();
}

// What the last position of each sequence must give.
struct Wanted {
  std::vector<std::vector<int>> ids;
  std::vector<std::vector<double>> logits;
  double tolerance = 0;
};

Wanted wanted_of(const json& variant) {
  if (!variant.contains("like"))
    return {variant["ids"], variant["last_logits"], variant["tolerance"].get<double>()};
  const json golden = read_case(kFolder + "arch/" + variant["like"].get<std::string>() + ".json");
  Wanted w;
  for (const json& sequence : golden["sequences"])
    w.ids.push_back(sequence["ids"]), w.logits.push_back(sequence["last_logits"]);
  const json& allowed = golden["tolerance"];
  w.tolerance = allowed.value("logit_abs", allowed.value("float_activations_logit_abs", 0.0));
  return w;
}

// Bits of the logits of all positions, with the file's own types.
std::vector<uint32_t> served_bits(const std::string& path, const Wanted& wanted, uint32_t context) {
  std::vector<uint32_t> bits;
  Rig rig(path, {.context = context});
  for (const std::vector<int>& ids : wanted.ids) {
    rig.restart();
    rig.feed(ids, 13, [&](uint32_t, std::span<const float> logits) {
      for (const float x : logits) bits.push_back(std::bit_cast<uint32_t>(x));
    });
  }
  return bits;
}

class Variants : public testing::TestWithParam<std::string> {};

TEST_P(Variants, LogitsMatchOrFileIsRefused) {
  const json variant = read_case(kFolder + "variants/" + GetParam() + ".json");
  const UnnamedFile file(make_file(variant));
  const auto context = variant["n_ctx"].get<uint32_t>();
  if (variant.contains("refused")) {
    const auto opened = file.open();
    ASSERT_TRUE(opened);
    const auto size = Model::packed_bytes(*opened, kernels::kernel_table(kernels::best_isa()), {});
    ASSERT_FALSE(size);
    for (const std::string words : variant["refused"])
      EXPECT_NE(size.error().message.find(words), std::string::npos) << size.error().message;
    return;
  }
  const Wanted wanted = wanted_of(variant);
  Rig rig(file.path(), {.to_f32 = true, .context = context});
  EXPECT_EQ(rig.model().unused_tensors(), variant.value("unused", std::vector<std::string>{}));
  for (size_t s = 0; s < wanted.ids.size(); ++s) {
    rig.restart();
    rig.feed(wanted.ids[s], 13, [&](uint32_t position, std::span<const float> logits) {
      if (position + 1 != wanted.ids[s].size()) return;
      ASSERT_EQ(logits.size(), wanted.logits[s].size());
      for (size_t v = 0; v < logits.size(); ++v)
        ASSERT_NEAR(logits[v], wanted.logits[s][v], wanted.tolerance) << "id " << v;
    });
  }
  // How a file cuts its matrices changes no bit of what is served.
  if (variant.contains("like") && variant.contains("tensors")) {
    const std::string base = kFolder + "arch/" + variant["base"].get<std::string>();
    EXPECT_EQ(served_bits(file.path(), wanted, context), served_bits(base, wanted, context));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Variants, testing::ValuesIn(variant_names()),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace tally::model
