// Law 1 at the model's door: the same ids give the same logits, byte for byte, whatever the chunking,
// threads, block size, ISA tier, or neighbours in the batch.
#include "model/rig_test_support.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

namespace tally::model {
namespace {

const char* const kFiles[] = {"tests/golden/tiny/tiny-f32.gguf",      "tests/golden/tiny/tiny-q-q4_0.gguf",
                              "tests/golden/tiny/tiny-q-q4_k_m.gguf", "tests/golden/tiny/tiny-q-q8_0.gguf",
                              "tests/golden/arch/llama_bias.gguf",    "tests/golden/arch/gemma3.gguf"};

std::vector<int> some_ids(size_t n, size_t vocab) {
  std::vector<int> ids;
  uint32_t x = 12345;
  for (size_t i = 0; i < n; ++i) {
    x = x * 1664525u + 1013904223u;
    ids.push_back(static_cast<int>((x >> 8) % vocab));
  }
  return ids;
}

std::vector<float> all_logits(const std::string& file, const RigOptions& options, uint32_t chunk) {
  Rig rig(file, options);
  std::vector<float> out;
  rig.feed(some_ids(100, rig.model().spec().vocab), chunk,
           [&](uint32_t, std::span<const float> row) { out.insert(out.end(), row.begin(), row.end()); });
  return out;
}

class Invariance : public testing::TestWithParam<const char*> {};
class DepthInvariance : public testing::TestWithParam<const char*> {};

std::string file_name(std::string path) {
  std::string name = path.substr(path.rfind('/') + 1);
  std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

TEST_P(Invariance, ChunksThreadsBlocksAndTiers) {
  for (const tensor::KvCodecInfo& codec : codecs_under_test()) {
    RigOptions base;
    base.codec = codec.codec, base.context = 128, base.rows_max = 128;
    const std::vector<float> wanted = all_logits(GetParam(), base, 100);
    const auto expect_same = [&](const RigOptions& options, uint32_t chunk, const std::string& what) {
      const std::vector<float> got = all_logits(GetParam(), options, chunk);
      ASSERT_EQ(got.size(), wanted.size());
      EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0)
          << codec.name << ": " << what;
    };
    for (const uint32_t chunk : {1u, 7u, 63u, 64u, 65u})
      expect_same(base, chunk, "chunk " + std::to_string(chunk));
    for (const uint32_t block : {16u, 32u, 128u}) {
      RigOptions o = base;
      o.block_tokens = block;
      expect_same(o, 33, "block " + std::to_string(block));
    }
    for (const size_t threads : {1u, 3u}) {
      RigOptions o = base;
      o.threads = threads;
      expect_same(o, 100, "threads " + std::to_string(threads));
    }
    for (const kernels::IsaInfo& tier : kernels::isas()) {
      if (!kernels::host_has(tier.isa)) continue;
      RigOptions o = base;
      o.isa = tier.isa;
      expect_same(o, 50, "isa " + std::string(tier.name));
    }
  }
}

// At depth the spans of a row are items of their own where threads are many: 3,090 positions in chunks, then
// rows to verify, then single ones; with a window too.
TEST_P(DepthInvariance, ThreadsDoNotMatter) {
  for (const tensor::KvCodecInfo& codec : codecs_under_test()) {
    const auto logits = [&](size_t threads, uint32_t last_chunk) {
      RigOptions o;
      o.codec = codec.codec, o.context = 3264, o.threads = threads;
      Rig rig(GetParam(), o);
      const std::vector<int> ids = some_ids(3202, rig.model().spec().vocab);
      const auto split = ids.begin() + 3090;
      std::vector<float> out;
      const auto keep = [&](uint32_t, std::span<const float> row) {
        out.insert(out.end(), row.begin(), row.end());
      };
      rig.feed({ids.begin(), split}, 512, [](uint32_t, std::span<const float>) {});
      rig.feed({split, split + 100}, last_chunk, keep);
      rig.feed({split + 100, ids.end()}, 1, keep);
      return out;
    };
    const std::vector<float> wanted = logits(1, 100);
    for (const auto& [threads, last_chunk] : {std::pair{2u, 100u}, {4u, 5u}, {8u, 20u}}) {
      const std::vector<float> got = logits(threads, last_chunk);
      ASSERT_EQ(got.size(), wanted.size());
      EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0)
          << codec.name << ": " << threads << " threads, chunks of " << last_chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, DepthInvariance,
                         testing::Values("tests/golden/tiny/tiny-q-q4_0.gguf",
                                         "tests/golden/arch/gemma3.gguf", "tests/golden/arch/gptoss.gguf",
                                         "tests/golden/arch/bloom.gguf"),
                         [](const auto& row) { return file_name(row.param); });

// Every architecture, with all of it changed at once.
class ArchInvariance : public testing::TestWithParam<std::string> {};

TEST_P(ArchInvariance, HoldsForTheFamily) {
  const std::string file = "tests/golden/arch/" + GetParam() + ".gguf";
  for (const tensor::KvCodecInfo& codec : codecs_under_test()) {
    RigOptions base;
    base.codec = codec.codec, base.context = 128, base.rows_max = 128;
    const std::vector<float> wanted = all_logits(file, base, 100);
    for (const kernels::IsaInfo& tier : kernels::isas()) {
      if (!kernels::host_has(tier.isa)) continue;
      RigOptions o = base;
      o.isa = tier.isa, o.block_tokens = 16, o.threads = 1;
      for (const uint32_t chunk : {1u, 37u}) {
        const std::vector<float> got = all_logits(file, o, chunk);
        ASSERT_EQ(got.size(), wanted.size());
        EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0)
            << codec.name << " " << tier.name << " chunk " << chunk;
      }
    }
  }
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/arch"))
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Families, ArchInvariance, testing::ValuesIn(family_names()),
                         [](const auto& row) { return row.param; });

// `--attention standard` is another arithmetic: close, not equal.
TEST_P(Invariance, StandardAttentionIsClose) {
  RigOptions options;
  options.context = 128, options.rows_max = 128;
  const std::vector<float> paged = all_logits(GetParam(), options, 64);
  options.standard_attention = true;
  const std::vector<float> standard = all_logits(GetParam(), options, 64);
  ASSERT_EQ(paged.size(), standard.size());
  double worst = 0;
  for (size_t i = 0; i < paged.size(); ++i)
    worst = std::max(worst, std::abs(double{paged[i]} - double{standard[i]}));
  EXPECT_LE(worst, 0.25);  // int8 activations amplify a last-bit difference; float models stay below 1e-4
}

INSTANTIATE_TEST_SUITE_P(Files, Invariance, testing::ValuesIn(kFiles),
                         [](const auto& row) { return file_name(row.param); });

}  // namespace
}  // namespace tally::model
